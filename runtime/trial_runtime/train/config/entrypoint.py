"""The ``entrypoint`` of an experiment config: which code a rank runs.

The grammar is that of :mod:`ds_migrate.experiment.entrypoint`. Starting the ranks was the launch layer's work and is
``ds-train``'s here, so only the inner part is run.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from typing import Literal

from ds_migrate.experiment.entrypoint import OPERATORS, Command, command_of, is_assignment, is_trial

_LAYERS = {
    "torch_distributed": "torch_distributed",
    "autotorch": "torch_distributed",
    "harness": "torch_distributed",
    "deepspeed": "deepspeed",
    "autodeepspeed": "deepspeed",
    "horovod": "horovod",
    "autohorovod": "horovod",
}
_FOREIGN_LAUNCHERS = ("torchrun", "deepspeed", "accelerate", "mpirun", "horovodrun", "srun")
_FOREIGN_MODULES = ("torch.distributed.run", "torch.distributed.launch", "deepspeed.launcher.runner")
_SHELL_WORDS = OPERATORS | {">", ">>", "<"}
_SHELLS = ("sh", "bash", "zsh")
FORMS = (
    "write 'module:Class', 'python3 script.py ARGS', 'python3 -m module ARGS' or "
    "'python3 -m determined.launch.<torch_distributed|deepspeed|horovod> (--trial module:Class | python3 script.py)'"
)


@dataclasses.dataclass(frozen=True)
class Entrypoint:
    """The program of a rank.

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
    """Return the entrypoint that ``value`` (a string or a list of words) describes.

    Raises:
        ValueError: it is none of the forms; the message states what is allowed.
    """
    words = _words(value)
    environment = []
    while words and is_assignment(words[0]):
        name, _, setting = words.pop(0).partition("=")
        environment.append((name, setting))
    if len(words) == 1 and is_trial(words[0]):
        return Entrypoint("class", words[0], environment=tuple(environment))
    if words:
        _refuse_other_programs(words)
    command = command_of(words)
    if command is None:
        raise ValueError(_CODE if "-c" in words else FORMS)
    return dataclasses.replace(_entrypoint(command), environment=tuple(environment))


_CODE = "code after -c is not run: put it into a script and write 'python3 script.py'"


def _words(value: object) -> list[str]:
    if isinstance(value, str):
        try:
            return shlex.split(value)
        except ValueError as error:
            raise ValueError(f"its quotes do not match ({error})") from error
    if isinstance(value, Sequence):
        return [str(word) for word in value]
    raise ValueError(FORMS)


def _refuse_other_programs(words: Sequence[str]) -> None:
    program = words[0].rpartition("/")[2]
    if program in _FOREIGN_LAUNCHERS:
        raise _foreign(words[0])
    if program == "cd" or any(word in _SHELL_WORDS or word.endswith(";") for word in words):
        raise ValueError(
            "ds-train runs one command on every slot, not a shell line: write the trial's own command "
            "(python3 script.py ARGS), do the rest before ds-train, and in place of 'cd' name the folder: "
            "ds-train CONFIG.yaml DIR"
        )
    if program in _SHELLS:
        raise ValueError(
            f"ds-train starts Python on every slot, not {words[0]!r}: write the command that trains, "
            "python3 script.py ARGS, and do the rest before ds-train"
        )


def _entrypoint(command: Command) -> Entrypoint:
    layer = _LAYERS.get(command.launcher or "torch_distributed")
    if layer is None:
        raise ValueError(f"the launch layer {command.launcher!r} is not for PyTorch trials; {FORMS}")
    overrides, flags = " ".join(command.overrides), " ".join(command.flags)
    dropped = [f"{flags} (options of the Python interpreter are not passed on)"] if flags else []
    dropped += [f"{overrides} (options of the launch layer)"] if overrides else []
    if command.trial is not None:
        if command.args or not is_trial(command.trial):
            given = " ".join([command.trial, *command.args])
            raise ValueError(f"after --trial stands {given!r}; write exactly one module:Class")
        return Entrypoint("class", command.trial, layer=layer, dropped=tuple(dropped))
    if command.module in _FOREIGN_MODULES:
        raise _foreign(command.module)
    if command.module is not None:
        return Entrypoint("module", command.module, command.args, layer=layer, dropped=tuple(dropped))
    if command.script is None:
        raise ValueError(f"nothing to run after the launch layer {command.launcher!r}; {FORMS}")
    if not command.interpreter:
        raise ValueError(FORMS)
    return Entrypoint("script", command.script, command.args, layer=layer, dropped=tuple(dropped))


def _foreign(launcher: str) -> ValueError:
    return ValueError(
        f"{launcher!r} would start processes that ds-train starts itself: "
        f"write 'python3 script.py ARGS' and resources.slots_per_trial, or run '{launcher} ... ds-train CONFIG.yaml'"
    )
