"""The values that differ by rank once each rank trains on a share of the data: batches, losses, what is made of them.

The order of statements is ignored, as it is in the flow of values: a variable that differs anywhere differs everywhere.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property

import libcst as cst

from ds_migrate.plain.dataflow.by_rank.call_results import CallResults
from ds_migrate.plain.dataflow.by_rank.rank_expressions import CLOCKS, PROCESS, SHARE, RankExpressions, Read
from ds_migrate.plain.dataflow.by_rank.rank_statements import Give, RankStatements
from ds_migrate.plain.dataflow.calls.applied_functions import applied_inputs, functions_with_other_calls
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import NOTHING, Values, Variable
from ds_migrate.syntax.nodes import parameters
from ds_migrate.syntax.source import SourceFile

_ROUNDS = 12


class RankValues(RankExpressions):
    """The variables and expressions of a program that differ by rank; its arguments are those of its base class."""

    def __init__(
        self,
        flow: Flow,
        loaders: Values,
        modules: Values,
        agreed: Collection[int] = (),
        clocks: Collection[str] = CLOCKS,
    ) -> None:
        super().__init__(flow, loaders, modules, agreed, clocks)
        self._known |= {PROCESS} if clocks else set()
        if loaders:
            self._known |= {SHARE, *flow.once(_unknown_inputs)}
        self._statements = RankStatements(self)
        self._results = CallResults(self, self._statements)
        self._settle(flow.once(_Readers))

    @cached_property
    def of_samples(self) -> RankValues:
        """The values that differ by rank as the data does, and not by the time alone."""
        return RankValues(self.flow, self._loaders, self._modules, self._agreed, clocks=())

    def are_known(self, *variables: Variable) -> bool:
        """Return whether one of these variables is known to differ, in the calls that are looked at."""
        if not self._results.open:
            return super().are_known(*variables)
        context = self._results.open[-1]
        outside = [variable for variable in variables if variable[0] not in context.owners]
        if not context.known.isdisjoint(variables) or super().are_known(*outside):
            return True
        context.unknown.update(outside)
        return False

    def differs(self, node: cst.CSTNode, file: SourceFile) -> bool:
        """Return whether an expression may have another value on another rank."""
        return self._find_difference(node, file) if self._results.open else super().differs(node, file)

    def differs_in(self, call: cst.Call, result: Variable, file: SourceFile) -> bool:
        """Return whether what a function returns, or an item of that, may differ in a call."""
        return self.are_known(result) and self._results.differs(result, call, file)

    def _settle(self, readers: _Readers) -> None:
        """Find variables until nothing changes, each time with those nodes that have read one which changed since."""
        outdated = {number for variable in self._known for number in readers.of(variable)}
        outdated |= {number for module in self._modules for number in readers.of(module)}
        seen = set[int]()
        for _ in range(_ROUNDS if outdated else 0):
            for number, give in enumerate(readers.gives):
                if number in outdated:
                    outdated.remove(number)
                    seen.add(number)
                    self._reader = number
                    for variable in give(self._statements):
                        if variable not in self._known:
                            self._known.add(variable)
                            outdated |= self._readers.pop(variable, set()) | (readers.of(variable) - seen)
        self._reader = None


class _Readers(RankExpressions):
    """The nodes of a program that give values to variables, by what each one reads before anything differs.

    Attributes:
        gives: for each of these nodes, how to find the variables to which it gives what differs.
    """

    def __init__(self, flow: Flow) -> None:
        super().__init__(flow, NOTHING, NOTHING, (), CLOCKS)
        self.gives: list[Give] = [give for file in flow.files.values() for give in RankStatements.of(file, flow)]
        statements = RankStatements(self)
        for number, give in enumerate(self.gives):
            self._reader = number
            found = list(give(statements))
            assert not found

    def of(self, read: Read) -> set[int]:
        """Return the numbers of the nodes that read a variable, or call a value."""
        return self._readers.get(read, set())

    def differs_in(self, call: cst.Call, result: Variable, file: SourceFile) -> bool:  # noqa: ARG002
        """Return that what a function returns does not differ yet."""
        return self.are_known(result)


def _unknown_inputs(flow: Flow) -> frozenset[Variable]:
    """Return the arguments of ``forward()`` where no call is found, as of a part of ``nn.Sequential``: of batches."""
    calls = list(flow.nodes(cst.Call))
    given = {variable for file, call in calls for variable, _ in flow.passed(call, file)}
    given |= {variable for file, call in calls for variable, _ in applied_inputs(call, file, flow)}
    others = functions_with_other_calls(flow)
    found = set[Variable]()
    for _, function in flow.nodes(cst.FunctionDef):
        inputs = [(id(function), p.name.value) for p in parameters(function)[1:]]
        if function.name.value == "forward" and (id(function) in others or not given.intersection(inputs)):
            found.update(inputs)
    return frozenset(found)
