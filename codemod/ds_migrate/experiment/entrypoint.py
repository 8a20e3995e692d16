"""The grammar of ``entrypoint``: ``module:Class``, or commands with or without one of Determined's launch layers.

The codemod edits entrypoints by it, and ``ds-train`` runs them by it::

    model_def:MyTrial        model-def:trials.MyTrial                     a class
    python3 train.py --epochs 3        python3 -m package.train           a script, a module
    python3 -m determined.launch.torch_distributed [OPTIONS --] SCRIPT    a launch layer around a script
    python3 -m determined.launch.deepspeed --trial model_def:MyTrial      a launch layer around a class

Determined took any module and dotted class behind ``--trial`` (``determined/load.py``), and alone ``module:Class``.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

_TRIAL = re.compile(r"[\w.-]+:[^\W\d]\w*(?:\.\w+)*")  # no blanks, so never a command; nor a host with its port
_WORD = re.compile(r"""(?:[^\s"'\\]|"(?:[^"\\]|\\.)*"|'[^']*'|\\[^\r\n])+""", re.DOTALL)
_PYTHON = re.compile(r"(?:.*/)?python[0-9.]*")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
OPERATORS = frozenset({"&&", "||", ";", "|", "&"})
_OPTIONS_WITH_VALUE = frozenset({"-W", "-X"})
_HARNESS = "determined.exec.harness"
_LAUNCH = re.compile(r"(?:determined|trial_runtime)\.launch\.(\w+)")


@dataclass(frozen=True)
class Word:
    """One word of a command: what it means, and its place in the text it was read from."""

    value: str
    start: int
    end: int


@dataclass(frozen=True)
class Command:
    """One ``python`` command. Numbers index the words of the entrypoint.

    ``trial``: ``module:Class`` given to a launch layer. ``script``: the Python file that runs, as written;
    ``module``: the same for ``python3 -m module``. ``args``: what follows any of them. ``interpreter``: the word that
    starts Python, "" where a script starts by itself; ``flags``: its own options. ``launcher``: ``torch_distributed``,
    ``horovod``, ..., or ``""``; it is at ``launcher_at``, and its own arguments (``overrides``) end before
    ``inner``, where the script's command begins. ``directory``: where a leading ``cd`` went. ``harness``: where the
    module stands through which a launch layer runs ``trial``, 0 when it takes the trial itself.
    """

    start: int
    stop: int
    launcher: str = ""
    launcher_at: int = 0
    inner: int = 0
    overrides: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    interpreter: str = ""
    trial: str | None = None
    script: str | None = None
    module: str | None = None
    args: tuple[str, ...] = ()
    directory: str = ""
    harness: int = 0


def is_trial(text: str) -> bool:
    """Return whether a string is ``module:Class``, which Determined starts by itself. A class may be in another."""
    return _TRIAL.fullmatch(text) is not None


def is_assignment(word: str) -> bool:
    """Return whether a word in front of a command sets a variable of the environment."""
    return _ASSIGNMENT.fullmatch(word) is not None


def words(text: str) -> list[Word]:
    """Return the words of shell command lines. Quotes and continued lines are understood, substitutions are kept."""
    result: list[Word] = []
    for match in _WORD.finditer(text):
        try:
            value = "".join(shlex.split(match.group()))
        except ValueError:
            value = match.group()
        result.append(Word(value, match.start(), match.end()))
    return result


def new_lines(text: str, found: Sequence[Word]) -> frozenset[int]:
    """Return the numbers of the words that begin a new line, and with it a new command."""
    between = (text[one.end : other.start] for one, other in pairwise(found))
    return frozenset(i for i, gap in enumerate(between, 1) if "\n" in gap.replace("\\\n", ""))


def commands(values: Sequence[str], shell: bool, lines: frozenset[int] = frozenset()) -> list[Command]:
    """Return the Python commands among words.

    ``shell``: whether ``&&``, ``;`` and ``cd`` have a meaning. ``lines``: the words that begin a new line.
    """
    found: list[Command] = []
    directory = ""
    start = 0
    for i in range(len(values) + 1):
        if i in lines and i > start:
            found += filter(None, [command_of(values[start:i], start, directory)])
            start = i
        at_end = i == len(values)
        glued = not at_end and shell and len(values[i]) > 1 and values[i].endswith(";")
        if not (at_end or glued or (shell and values[i] in OPERATORS)):
            continue
        segment = [*values[start:i], *([values[i][:-1]] if glued else [])]
        if shell and len(segment) == 2 and segment[0] == "cd":
            directory = f"{directory}/{segment[1]}" if directory else segment[1]
        else:
            command = command_of(segment, start, directory)
            if command is not None:
                found.append(command)
        start = i + 1
    return found


def command_of(segment: Sequence[str], offset: int = 0, directory: str = "") -> Command | None:
    """Return the Python command that the words are, None for any other. ``offset``: the number of the first word."""
    stop = offset + len(segment)
    i = 0
    while i < len(segment) and (segment[i] in ("exec", "env") or is_assignment(segment[i])):
        i += 1
    if i == len(segment):
        return None
    first = i
    if _PYTHON.fullmatch(segment[i]) is None:
        if segment[i].endswith(".py"):
            args = tuple(segment[i + 1 :])
            return Command(offset + first, stop, script=segment[i], args=args, directory=directory)
        return None
    i += 1
    while i < len(segment) and segment[i].startswith("-") and segment[i] != "-m":
        if segment[i] == "-c":  # code, which is no file
            return None
        i += 2 if segment[i] in _OPTIONS_WITH_VALUE else 1
    if i >= len(segment) or segment[i:] == ["-m"]:
        return None
    python = Command(
        offset + first, stop, interpreter=segment[first], flags=tuple(segment[first + 1 : i]), directory=directory
    )
    if segment[i] != "-m":
        return replace(python, script=segment[i], args=tuple(segment[i + 1 :]))
    module, args = segment[i + 1], tuple(segment[i + 2 :])
    if module == _HARNESS:
        at = offset + i + 1
        trial = args[0] if args else None
        return replace(python, launcher="harness", launcher_at=at, inner=stop, trial=trial, args=args[1:])
    if (layer := _LAUNCH.fullmatch(module)) is not None:
        return _launched(replace(python, launcher=layer[1], launcher_at=offset + i + 1), args)
    return replace(python, module=module, args=args)


def _launched(outer: Command, words: Sequence[str]) -> Command:
    """Return the command of a launch layer: ``[overrides...] [--] (--trial module:Class | script...)``."""
    start = next((i for i, word in enumerate(words) if _starts_command(word)), len(words))
    inner = outer.launcher_at + 1 + start
    overrides = tuple(word for word in words[:start] if word != "--")
    outer = replace(outer, inner=inner, overrides=overrides)
    rest = words[start:]
    if rest and rest[0].startswith("--trial="):
        return replace(outer, trial=rest[0].removeprefix("--trial="), args=tuple(rest[1:]))
    if len(rest) >= 2 and rest[0] == "--trial":
        return replace(outer, trial=rest[1], args=tuple(rest[2:]))
    if rest and is_trial(rest[0]):
        return replace(outer, trial=rest[0], args=tuple(rest[1:]))
    script = command_of(rest, inner, outer.directory)
    if script is None or script.launcher not in ("", "harness"):
        return outer
    harness = script.launcher_at if script.launcher else 0
    return replace(
        outer, flags=(*outer.flags, *script.flags), interpreter=script.interpreter, trial=script.trial,
        script=script.script, module=script.module, args=script.args, harness=harness,
    )  # fmt: skip


def _starts_command(word: str) -> bool:
    is_option = word == "--trial" or word.startswith("--trial=")
    return is_option or is_trial(word) or word.endswith(".py") or _PYTHON.fullmatch(word) is not None
