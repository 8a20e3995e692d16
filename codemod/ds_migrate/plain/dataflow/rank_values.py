"""The values that differ by rank once each rank trains on a share of the data: batches, losses, what is made of them.

The order of statements is ignored, as it is in the flow of values: a variable that differs anywhere differs everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.rank_expressions import RankExpressions
from ds_migrate.plain.dataflow.rank_statements import RankStatements
from ds_migrate.plain.dataflow.values import Values, Variable
from ds_migrate.syntax.nodes import parameters

_ROUNDS = 12


class RankValues(RankExpressions):
    """The variables and expressions of a program that differ by rank.

    Args:
        flow: of the program.
        loaders: those of which each rank gets a share.
        modules: those that train on them: their running statistics differ.
        agreed: the conditions, by identity, that rank 0 decides for all.
    """

    def __init__(self, flow: Flow, loaders: Values, modules: Values, agreed: Collection[int] = ()) -> None:
        super().__init__(flow, loaders, modules, agreed)
        if loaders:
            self._known.update(flow.once("unknown inputs of forward()", lambda: frozenset(_unknown_inputs(flow))))
        statements = RankStatements(self)
        self._settle([give for file in flow.files.values() for give in statements.of(file)])

    def _settle(self, gives: Sequence[Callable[[], Iterator[Variable]]]) -> None:
        """Find variables until nothing changes, each time with those nodes that have read one which changed since."""
        outdated = set(range(len(gives)))
        for _ in range(_ROUNDS):
            for number, give in enumerate(gives):
                if number in outdated:
                    outdated.remove(number)
                    self._reader = number
                    for variable in give():
                        if variable not in self._known:
                            self._known.add(variable)
                            outdated |= self._readers.pop(variable, set())
        self._reader = None


def _unknown_inputs(flow: Flow) -> Iterator[Variable]:
    """Yield the arguments of ``forward()`` where no call is found, as of a part of ``nn.Sequential``: of batches."""
    given = {
        variable
        for file in flow.files.values() for call in file.nodes(cst.Call) for variable, _ in flow.passed(call, file)
    }  # fmt: skip
    for file in flow.files.values():
        for function in file.nodes(cst.FunctionDef):
            inputs = [(id(function), p.name.value) for p in parameters(function)[1:]]
            if function.name.value == "forward" and not given.intersection(inputs):
                yield from inputs
