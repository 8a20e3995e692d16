"""Environments of reinforcement learning that begin by themselves: each rank acts in a separate one.

Their episodes have other lengths on each rank. A script that steps an optimizer in each of their steps then does so
more often on one rank, and ranks wait for each other forever.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.dataflow.calls.idle_functions import idle_functions
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import NOTHING, Value
from ds_migrate.plain.decisions.plan import Note
from ds_migrate.plain.ranks.processes.made_environments import MAKERS, MadeEnvironments
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import argument, called_name, dotted, parameters
from ds_migrate.syntax.source import SourceFile

_Call = tuple[SourceFile, cst.Call]
_DEPTH = 8
_ADVICE = "give reset() a seed that is the same on all ranks, or let rank 0 decide where episodes and training end"


def unseeded_environments(files: list[SourceFile], flow: Flow) -> Iterator[Note]:
    """Yield a note for each environment, and each action that one draws, if the program gives it no seed."""
    environments = MadeEnvironments(files, flow)
    if not environments.makers:
        return
    idle = idle_functions(flow)
    calls = [(file, call) for file in files for call in file.nodes(cst.Call) if not idle.hold(call, file)]
    seeds = _Seeds(files, flow, environments)
    unseeded = [one for one in environments.all if not any(seeds.reaches(one, call, file) for file, call in calls)]
    is_without_seeds = len(unseeded) == len(environments.all)
    makers = environments.makers
    if not is_without_seeds:  # an environment whose shapes alone are read has no episodes
        acting = NOTHING.union(*(environments.meant(owner, file) for file, owner in _actors(calls)))
        unseeded = [one for one in unseeded if any(flow.copies.may_be_one(one, other) for other in acting)]
        makers = [environments.maker(one) for one in unseeded]
    for file, call in {id(call): (file, call) for file, call in makers}.values():
        message = "each rank acts in a separate environment: its data and the lengths of its episodes differ"
        yield Note(Code.PLAIN_AGREEMENT, file, call, message, _ADVICE)
    if is_without_seeds:
        return
    seeded = [environments.acted_on(call, file) for file, call in calls if _is_of_space(call, "seed", "action_space")]
    spaces = NOTHING.union(*seeded)
    for file, call in calls:
        if not _is_of_space(call, "sample", "action_space") or not isinstance(call.func, cst.Attribute):
            continue
        drawn = environments.owners(call.func, file)
        if not seeded or not all(any(flow.copies.may_be_one(one, other) for other in spaces) for one in drawn):
            message = "each rank draws other actions here: its data and the lengths of its episodes differ"
            yield Note(Code.PLAIN_AGREEMENT, file, call, message, "give the space of actions a seed")


def _actors(calls: list[_Call]) -> Iterator[tuple[SourceFile, cst.BaseExpression]]:
    """Yield what each episode begins in, or acts in."""
    for file, call in calls:
        if isinstance(call.func, cst.Attribute) and call.func.attr.value in ("reset", "step"):
            yield file, call.func.value


class _Seeds:
    """Seeds of a program, some of which are None where no option gives one."""

    def __init__(self, files: list[SourceFile], flow: Flow, environments: MadeEnvironments) -> None:
        self._flow = flow
        self._environments = environments
        self._calls = [(file, call) for file in files for call in file.nodes(cst.Call)]

    def reaches(self, environment: Value, call: cst.Call, file: SourceFile) -> bool:
        """Return whether a call makes an environment with a seed, or gives it one."""
        copies = self._flow.copies
        seed = argument(call, None, "seed")
        if seed is not None and self._flow.is_call_of(call, file, MAKERS):
            seeded = self._environments.meant(call, file)
        elif isinstance(call.func, cst.Attribute) and call.func.attr.value in ("reset", "seed"):
            if call.func.attr.value == "seed":
                seed = call.args[0] if call.args and not _is_of_space(call, "seed") else None
            seeded = self._environments.acted_on(call, file) if seed is not None else NOTHING
        else:
            return False
        if seed is None or not any(copies.may_be_one(environment, one) for one in seeded):
            return False
        return self.is_given(seed.value, file, copies.calls(environment))

    def is_given(self, node: cst.BaseExpression, file: SourceFile, through: list[_Call], depth: int = _DEPTH) -> bool:
        """Return whether a seed is a number where nothing but the defaults of the program says so.

        Args:
            node: the seed.
            file: of the seed.
            through: the calls that return the environment, each of a function that other calls may give another seed.
            depth: of the calls that the seed is followed through.
        """
        if dotted(node) == "None" or depth == 0:
            return depth == 0
        if isinstance(node, cst.Attribute):
            defaults = list(self._defaults(node.attr.value))
            return not defaults or any(value is not None and dotted(value) != "None" for value in defaults)
        function = file.function(node)
        own = parameters(function) if function is not None else []
        param = next((p for p in own if p.name.value == dotted(node)), None)
        if function is None or param is None:
            return True
        calls = [(home, call) for home, call in through if self._is_of(call, home, function)]
        if not calls and (param.default is None or dotted(param.default) != "None"):
            return True
        given = [
            (home, value)
            for home, call in calls or self._calls
            for variable, value in self._flow.passed(call, home) if variable == (id(function), param.name.value)
        ]  # fmt: skip
        if calls and not given:
            return param.default is None or dotted(param.default) != "None"
        return any(self.is_given(value, home, through, depth - 1) for home, value in given)

    def _is_of(self, call: cst.Call, file: SourceFile, function: cst.FunctionDef) -> bool:
        return any(value.key == id(function) for value in self._flow.values(call.func, file))

    def _defaults(self, name: str) -> Iterator[cst.BaseExpression | None]:
        """Yield the default of each option of a name; None where it has none."""
        for _, call in self._calls:
            flags = [arg.value.evaluated_value for arg in call.args if isinstance(arg.value, cst.SimpleString)]
            if called_name(call) == "add_argument" and f"--{name}".replace("_", "-") in _dashed(flags):
                default = argument(call, None, "default")
                yield default.value if default is not None else None


def _dashed(flags: list[str | bytes]) -> list[str]:
    return [str(flag).replace("_", "-") for flag in flags]


def _is_of_space(call: cst.Call, name: str, space: str = "_space") -> bool:
    """Return whether a call is of a method of a space, by what its name ends with."""
    owner = call.func.value if isinstance(call.func, cst.Attribute) and call.func.attr.value == name else None
    return isinstance(owner, cst.Attribute) and owner.attr.value.endswith(space)
