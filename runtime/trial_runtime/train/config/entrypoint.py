"""The ``entrypoint`` of an experiment config: which code a rank runs.

Forms, each as a string or as a list of words::

    model_def:MyTrial                                                     a class
    python3 train.py --epochs 3        python3 -m package.train           a script, a module
    python3 -m determined.launch.torch_distributed [OPTIONS --] SCRIPT    a launch layer around a script
    python3 -m determined.launch.deepspeed --trial model_def:MyTrial      a launch layer around a class

Starting the ranks was the launch layer's work and is ``ds-train``'s here, so only the inner part is run.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Sequence
from typing import Literal

CLASS = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_PYTHON = re.compile(r"(.*/)?python(\d+(\.\d+)?)?")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_LAUNCHER = re.compile(r"(?:determined|trial_runtime)\.launch\.(\w+)")
_LAYERS = {
    "torch_distributed": "torch_distributed",
    "autotorch": "torch_distributed",
    "deepspeed": "deepspeed",
    "autodeepspeed": "deepspeed",
    "horovod": "horovod",
    "autohorovod": "horovod",
}
_FOREIGN_LAUNCHERS = ("torchrun", "deepspeed", "accelerate", "mpirun", "horovodrun", "srun")
_SHELL_OPERATORS = frozenset({"&&", "||", ";", "|", "&", ">", ">>", "<"})
_SHELLS = ("sh", "bash", "zsh")
_FOREIGN_MODULES = ("torch.distributed.run", "torch.distributed.launch", "deepspeed.launcher.runner")
FORMS = (
    "write 'module:Class', 'python3 script.py ARGS', 'python3 -m module ARGS' or "
    "'python3 -m determined.launch.<torch_distributed|deepspeed|horovod> (--trial module:Class | python3 script.py)'"
)


@dataclasses.dataclass(frozen=True)
class Entrypoint:
    """What a rank runs.

    Attributes:
        kind: ``"class"`` (``target`` is ``module:Class``), ``"script"`` (a path relative to the context directory) or
            ``"module"`` (a dotted name, run as ``python -m`` would).
        target: see ``kind``.
        args: arguments of the script or module.
        environment: variables that the entrypoint sets before its command.
        layer: launch layer whose behaviour is kept, ``torch_distributed`` unless another is named.
        dropped: words of the entrypoint that are not used, with the reason.
    """

    kind: Literal["class", "script", "module"]
    target: str
    args: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    layer: str = "torch_distributed"
    dropped: tuple[str, ...] = ()


def parse(value: object) -> Entrypoint:
    """The entrypoint that ``value`` (a string or a list of words) describes.

    Raises:
        ValueError: it is none of the forms; the message says what is allowed.
    """
    if isinstance(value, str):
        try:
            words = shlex.split(value)
        except ValueError as error:
            raise ValueError(f"its quotes do not match ({error})") from error
    elif isinstance(value, Sequence):
        words = [str(word) for word in value]
    else:
        raise ValueError(FORMS)
    environment = []
    while words and _ASSIGNMENT.match(words[0]):
        name, _, setting = words.pop(0).partition("=")
        environment.append((name, setting))
    return dataclasses.replace(_command(words), environment=tuple(environment))


def _command(words: list[str]) -> Entrypoint:
    if not words:
        raise ValueError(FORMS)
    if len(words) == 1 and CLASS.fullmatch(words[0]):
        return Entrypoint("class", words[0])
    if words[0].rpartition("/")[2] in _FOREIGN_LAUNCHERS:
        raise _foreign(words[0])
    if words[0] == "cd" or any(word in _SHELL_OPERATORS or word.endswith(";") for word in words):
        raise ValueError(
            "ds-train runs one command on every slot, not a shell line: write the trial's own command "
            "(python3 script.py ARGS), do the rest before ds-train, and in place of 'cd' name the folder: "
            "ds-train CONFIG.yaml DIR"
        )
    if words[0].rpartition("/")[2] in _SHELLS:
        raise ValueError(
            f"ds-train starts Python on every slot, not {words[0]!r}: write the command that trains, "
            "python3 script.py ARGS, and do the rest before ds-train"
        )
    if not _PYTHON.fullmatch(words[0]):
        raise ValueError(FORMS)
    return _python(words[1:])


def _python(words: list[str]) -> Entrypoint:
    flags: list[str] = []
    while words and words[0].startswith("-") and words[0] != "-m":
        flag = words.pop(0)
        if flag == "-c":
            raise ValueError("code after -c is not run: put it into a script and write 'python3 script.py'")
        flags.append(flag)
        if flag in ("-W", "-X") and words:
            flags.append(words.pop(0))
    dropped = (f"{' '.join(flags)} (options of the Python interpreter are not passed on)",) if flags else ()
    if not words or words == ["-m"]:
        raise ValueError(FORMS)
    if words[0] != "-m":
        return Entrypoint("script", words[0], tuple(words[1:]), dropped=dropped)
    module, rest = words[1], words[2:]
    launcher = _LAUNCHER.fullmatch(module)
    if launcher or module == "determined.exec.harness":
        name = launcher[1] if launcher else "torch_distributed"
        inner = _launched(name, rest)
        return dataclasses.replace(inner, dropped=dropped + inner.dropped)
    if module in _FOREIGN_MODULES:
        raise _foreign(module)
    return Entrypoint("module", module, tuple(rest), dropped=dropped)


def _launched(name: str, words: list[str]) -> Entrypoint:
    layer = _LAYERS.get(name)
    if layer is None:
        raise ValueError(f"the launch layer {name!r} is not for PyTorch trials; {FORMS}")
    start = next((i for i, word in enumerate(words) if _starts_command(word)), None)
    if start is None:
        raise ValueError(f"nothing to run after the launch layer {name!r}; {FORMS}")
    options = [word for word in words[:start] if word != "--"]
    words = words[start:]
    if words[0] == "--trial" or words[0].startswith("--trial="):
        words = [words[0].partition("=")[2], *words[1:]] if "=" in words[0] else words[1:]
        if len(words) != 1 or not CLASS.fullmatch(words[0]):
            raise ValueError(f"after --trial stands {' '.join(words)!r}; write exactly one module:Class")
    inner = _command(words)
    dropped = (f"{' '.join(options)} (options of the launch layer)",) if options else ()
    return dataclasses.replace(inner, layer=layer, dropped=dropped + inner.dropped)


def _starts_command(word: str) -> bool:
    return word == "--trial" or word.startswith("--trial=") or bool(_PYTHON.fullmatch(word) or CLASS.fullmatch(word))


def _foreign(launcher: str) -> ValueError:
    return ValueError(
        f"{launcher!r} would start processes that ds-train starts itself: "
        f"write 'python3 script.py ARGS' and resources.slots_per_trial, or run '{launcher} ... ds-train CONFIG.yaml'"
    )
