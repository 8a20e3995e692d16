"""Results of functions in single calls: they differ by rank where an argument of that call does, or another part.

A helper that returns outputs as an array in one call returns the settings of a program in another one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import libcst as cst

from ds_migrate.plain.dataflow.by_rank.rank_expressions import RankExpressions
from ds_migrate.plain.dataflow.by_rank.rank_statements import Give, RankStatements
from ds_migrate.plain.dataflow.values import Kind, Variable, of_kind
from ds_migrate.syntax.nodes import decorators, last_name, parameters
from ds_migrate.syntax.source import SourceFile

_ROUNDS = 12
_DEEPEST = 3  # calls in each other, of which the arguments of each are followed
_SAME_ARGUMENTS = frozenset({"staticmethod", "classmethod", "no_grad", "inference_mode"})  # decorators
_BODIES = (cst.For, cst.With, cst.ListComp, cst.SetComp, cst.GeneratorExp, cst.DictComp, cst.Del)  # as in BodyNames


@dataclass
class CallContext:
    """The variables of a function in calls that give it what differs for the same parameters.

    Attributes:
        owners: the function, and what in it has separate variables, by identity.
        known: the variables of these that differ.
        unknown: variables of others that were read, and did not differ.
    """

    owners: frozenset[int]
    known: set[Variable]
    unknown: set[Variable] = field(default_factory=set)


class CallResults:
    """The results of the functions of a program, call by call.

    Args:
        values: the expressions of the program that differ.
        statements: that give variables what differs.

    Attributes:
        open: the contexts in which statements are looked at, the innermost one last.
    """

    def __init__(self, values: RankExpressions, statements: RankStatements) -> None:
        self._values = values
        self._statements = statements
        self._flow = values.flow
        self._gives: dict[int, list[Give]] = {}
        self._found: dict[tuple[int, frozenset[Variable]], CallContext] = {}
        self.open: list[CallContext] = []

    def differs(self, result: Variable, call: cst.Call, file: SourceFile) -> bool:
        """Return whether what a function returns in a call, or an item of that, differs, as it does in some call."""
        key = result[0]
        home, function = self._flow.node_of(key) or (file, None)
        is_open = any(key in context.owners for context in self.open)
        if not isinstance(function, cst.FunctionDef) or is_open or len(self.open) == _DEEPEST:
            return True
        if not self._can_follow(call, function, file):
            return True
        given = frozenset(
            variable for variable, arg in self._flow.passed(call, file)
            if variable[0] == key and self._values.differs(arg, file)
        )  # fmt: skip
        known = {variable for p in parameters(function) if self._values.is_known(variable := (key, p.name.value))}
        return known <= given or result in self._in_context(function, home, given).known

    def _can_follow(self, call: cst.Call, function: cst.FunctionDef, file: SourceFile) -> bool:
        """Return whether it is known which argument each parameter of a function gets in a call."""
        params = function.params
        has_stars = isinstance(params.star_arg, cst.Param) or params.star_kwarg is not None
        if has_stars or any(arg.star for arg in call.args):
            return False
        names = set(map(last_name, decorators(function)))
        owner = call.func.value if isinstance(call.func, cst.Attribute) else None
        is_of_class = owner is not None and bool(of_kind(self._flow.values(owner, file), Kind.CLASS))
        return names <= _SAME_ARGUMENTS and (bool(names) or not is_of_class)  # Base.method(self, x)

    def _in_context(self, function: cst.FunctionDef, file: SourceFile, given: frozenset[Variable]) -> CallContext:
        """Return the variables of a function that differ where these parameters do."""
        found = self._found.get((id(function), given))
        if found is None or any(map(self._values.is_known, found.unknown)):
            found = self._found[id(function), given] = self._find(function, file, given)
        self._values.read(found.unknown)
        if self.open:
            self.open[-1].unknown |= found.unknown
        return found

    def _find(self, function: cst.FunctionDef, file: SourceFile, given: frozenset[Variable]) -> CallContext:
        bodies = (node for node in file.nodes(*_BODIES, below=function) if file.function(node) is function)
        context = CallContext(frozenset({id(function), *map(id, bodies)}), set(given))
        if id(function) not in self._gives:
            self._gives[id(function)] = list(RankStatements.of(file, self._flow, function))
        self.open.append(context)
        for _ in range(_ROUNDS):
            before = len(context.known)
            for give in self._gives[id(function)]:
                context.known.update(variable for variable in give(self._statements) if variable[0] in context.owners)
            if len(context.known) == before:
                break
        self.open.pop()
        return context
