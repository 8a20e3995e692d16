"""Environments of reinforcement learning that begin by themselves: each rank acts in a separate one.

Their episodes have other lengths on each rank. A script that steps an optimizer in each of their steps then does so
more often on one rank, and ranks wait for each other forever.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.decisions.plan import Note
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import argument, called_name, dotted, parameters
from ds_migrate.syntax.source import SourceFile

_LIBRARIES = ("gym", "gymnasium")
_MAKERS = tuple(f"{library}.{name}" for library in _LIBRARIES for name in ("make", "make_vec", "vector.make"))
_OTHERS = frozenset({"random", "np.random", "numpy.random", "torch", "torch.random"})  # that seed() means too
_DEPTH = 8
_ADVICE = "give reset() a seed that is the same on all ranks, or let rank 0 decide where episodes and training end"


def unseeded_environments(files: list[SourceFile], flow: Flow) -> Iterator[Note]:
    """Yield a note for each environment, and each action that one draws, if the program gives none of them a seed."""
    calls = [(file, call) for file in files for call in file.nodes(cst.Call)]
    made = [(file, call) for file, call in calls if flow.is_call_of(call, file, _MAKERS)]
    drawn = [(file, call) for file, call in calls if _is_of_actions(call, "sample")]
    if not made:
        return
    seeds = _Seeds(files, flow)
    if not any(_seeds_environment(call, file, seeds) for file, call in calls):
        for file, call in made:
            message = "each rank acts in a separate environment: its data and the lengths of its episodes differ"
            yield Note(Code.PLAIN_AGREEMENT, file, call, message, _ADVICE)
    elif not any(_is_of_actions(call, "seed") for _, call in calls):
        for file, call in drawn:
            message = "each rank draws other actions here: its data and the lengths of its episodes differ"
            yield Note(Code.PLAIN_AGREEMENT, file, call, message, "give the space of actions a seed")


def _seeds_environment(call: cst.Call, file: SourceFile, seeds: _Seeds) -> bool:
    if not isinstance(call.func, cst.Attribute):
        return False
    name = call.func.attr.value
    if name == "reset":
        seed = argument(call, None, "seed")
        return seed is not None and seeds.is_given(seed.value, file)
    is_seeded = name == "seed" and bool(call.args) and dotted(call.func.value) not in _OTHERS
    return is_seeded and seeds.is_given(call.args[0].value, file)


class _Seeds:
    """Seeds of a program, some of which are None where no option gives one."""

    def __init__(self, files: list[SourceFile], flow: Flow) -> None:
        self._flow = flow
        self._calls = [(file, call) for file in files for call in file.nodes(cst.Call)]

    def is_given(self, node: cst.BaseExpression, file: SourceFile, depth: int = _DEPTH) -> bool:
        """Return whether a seed is a number where nothing but the defaults of the program says so."""
        if dotted(node) == "None" or depth == 0:
            return depth == 0
        if isinstance(node, cst.Attribute):
            defaults = list(self._defaults(node.attr.value))
            return not defaults or any(value is not None and dotted(value) != "None" for value in defaults)
        function = file.function(node)
        own = parameters(function) if function is not None else []
        param = next((p for p in own if p.name.value == dotted(node)), None)
        if function is None or param is None or param.default is None or dotted(param.default) != "None":
            return True
        given = [
            (home, value)
            for home, call in self._calls
            for variable, value in self._flow.passed(call, home) if variable == (id(function), param.name.value)
        ]  # fmt: skip
        return any(self.is_given(value, home, depth - 1) for home, value in given)

    def _defaults(self, name: str) -> Iterator[cst.BaseExpression | None]:
        """Yield the default of each option of a name; None where it has none."""
        for _, call in self._calls:
            flags = [arg.value.evaluated_value for arg in call.args if isinstance(arg.value, cst.SimpleString)]
            if called_name(call) == "add_argument" and f"--{name}".replace("_", "-") in _dashed(flags):
                default = argument(call, None, "default")
                yield default.value if default is not None else None


def _dashed(flags: list[str | bytes]) -> list[str]:
    return [str(flag).replace("_", "-") for flag in flags]


def _is_of_actions(call: cst.Call, name: str) -> bool:
    """Return whether a call is of a method of a space of actions."""
    owner = call.func.value if isinstance(call.func, cst.Attribute) and call.func.attr.value == name else None
    return isinstance(owner, cst.Attribute) and owner.attr.value.endswith("action_space")
