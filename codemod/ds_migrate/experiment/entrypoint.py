"""What an ``entrypoint`` runs: ``module:Class``, or commands with or without one of Determined's launch layers."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

_LEGACY = re.compile(r"[\w.-]+:\w+")  # no blanks, so never a command
_WORD = re.compile(r"""(?:[^\s"'\\]|"(?:[^"\\]|\\.)*"|'[^']*'|\\[^\r\n])+""", re.DOTALL)
_PYTHON = re.compile(r"(?:.*/)?python[0-9.]*")
_ASSIGNMENT = re.compile(r"\w+=.*", re.DOTALL)
OPERATORS = frozenset({"&&", "||", ";", "|", "&"})
_OPTIONS_WITH_VALUE = frozenset({"-W", "-X"})
_HARNESS = "determined.exec.harness"
_LAUNCH = "determined.launch."


@dataclass(frozen=True)
class Word:
    """One word of a command: what it means, and where it stands in the text it was read from."""

    value: str
    start: int
    end: int


@dataclass(frozen=True)
class Command:
    """One ``python`` command. Numbers index the words of the entrypoint.

    ``trial``: ``module:Class`` given to a launch layer. ``script``: the Python file that runs, as written;
    ``module``: the same for ``python3 -m module``. ``launcher``: ``torch_distributed``, ``horovod``, ..., or ``""``;
    it stands at ``launcher_at``, and its own arguments end before ``inner``, where the script's command begins.
    ``directory``: where a leading ``cd`` went. ``harness``: where the module stands through which a launch layer runs
    ``trial``, 0 when it takes the trial itself.
    """

    start: int
    stop: int
    launcher: str = ""
    launcher_at: int = 0
    inner: int = 0
    overrides: tuple[str, ...] = ()
    trial: str | None = None
    script: str | None = None
    module: str | None = None
    directory: str = ""
    harness: int = 0


def is_legacy(text: str) -> bool:
    """Whether a string is ``module:Class``, which Determined starts by itself."""
    return _LEGACY.fullmatch(text) is not None


def words(text: str) -> list[Word]:
    """The words of shell command lines; quotes and continued lines are understood, substitutions stay as they are."""
    result: list[Word] = []
    for match in _WORD.finditer(text):
        try:
            value = "".join(shlex.split(match.group()))
        except ValueError:
            value = match.group()
        result.append(Word(value, match.start(), match.end()))
    return result


def new_lines(text: str, found: Sequence[Word]) -> frozenset[int]:
    """The numbers of the words that begin a new line, and with it a new command."""
    between = (text[one.end : other.start] for one, other in pairwise(found))
    return frozenset(i for i, gap in enumerate(between, 1) if "\n" in gap.replace("\\\n", ""))


def commands(values: Sequence[str], shell: bool, lines: frozenset[int] = frozenset()) -> list[Command]:
    """The Python commands among words; ``shell`` says that ``&&``, ``;`` and ``cd`` have a meaning, and ``lines``
    where new lines begin."""
    found: list[Command] = []
    directory = ""
    start = 0
    for i in range(len(values) + 1):
        if i in lines and i > start:
            found += filter(None, [_command(values[start:i], start, directory)])
            start = i
        at_end = i == len(values)
        glued = not at_end and shell and len(values[i]) > 1 and values[i].endswith(";")
        if not (at_end or glued or (shell and values[i] in OPERATORS)):
            continue
        segment = [*values[start:i], *([values[i][:-1]] if glued else [])]
        if shell and len(segment) == 2 and segment[0] == "cd":
            directory = f"{directory}/{segment[1]}" if directory else segment[1]
        else:
            command = _command(segment, start, directory)
            if command is not None:
                found.append(command)
        start = i + 1
    return found


def _command(segment: Sequence[str], offset: int, directory: str) -> Command | None:
    stop = offset + len(segment)
    i = 0
    while i < len(segment) and (segment[i] in ("exec", "env") or _ASSIGNMENT.fullmatch(segment[i])):
        i += 1
    if i == len(segment):
        return None
    first = i
    if _PYTHON.fullmatch(segment[i]) is None:
        if segment[i].endswith(".py"):
            return Command(offset + first, stop, script=segment[i], directory=directory)
        return None
    i += 1
    while i < len(segment) and segment[i].startswith("-") and segment[i] != "-m":
        i += 2 if segment[i] in _OPTIONS_WITH_VALUE else 1
    if i == len(segment):
        return None
    if segment[i] != "-m":
        return Command(offset + first, stop, script=segment[i], directory=directory)
    if i + 1 == len(segment):
        return None
    module = segment[i + 1]
    if module == _HARNESS or module.startswith(_LAUNCH):
        return _launch(segment, offset, first, i + 1, directory)
    return Command(offset + first, stop, module=module, directory=directory)


def _launch(segment: Sequence[str], offset: int, first: int, at: int, directory: str) -> Command | None:
    """A command of Determined's: ``launcher [[overrides...] --] (--trial module:Class | script...)``."""
    stop = offset + len(segment)
    layer = segment[at]
    rest = list(segment[at + 1 :])
    inner = at + 1
    if layer == _HARNESS:
        trial = rest[0] if rest else None
        return Command(offset + first, stop, "harness", offset + at, stop, trial=trial, directory=directory)
    overrides: tuple[str, ...] = ()
    if "--" in rest:
        split = rest.index("--")
        overrides, rest = tuple(rest[:split]), rest[split + 1 :]
        inner += split + 1
    while rest and rest[0] == "--autohorovod":
        rest = rest[1:]
        inner += 1
    shared = (offset + first, stop, layer.removeprefix(_LAUNCH), offset + at, offset + inner, overrides)
    if rest and rest[0].startswith("--trial="):
        return Command(*shared, trial=rest[0].removeprefix("--trial="), directory=directory)
    if len(rest) >= 2 and rest[0] == "--trial":
        return Command(*shared, trial=rest[1], directory=directory)
    script = _command(rest, offset + inner, directory)
    if script is not None and script.launcher == "harness":
        return Command(*shared, trial=script.trial, directory=directory, harness=script.launcher_at)
    if script is None or script.launcher:
        return Command(*shared, directory=directory)
    return Command(*shared, script=script.script, module=script.module, directory=directory)
