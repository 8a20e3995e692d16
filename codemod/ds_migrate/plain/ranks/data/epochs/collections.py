"""Variables in which a training loop collects samples of a rank's share, itself or in functions that it calls."""

from __future__ import annotations

import libcst as cst

from ds_migrate.plain.dataflow.by_rank.rank_values import RankValues
from ds_migrate.plain.dataflow.values import Kind, Variable, of_kind
from ds_migrate.plain.decisions.plan import ProgramPlan
from ds_migrate.plain.ranks.data.epochs.collected_items import collected_items
from ds_migrate.plain.ranks.data.epochs.evaluated_shares import training_nodes
from ds_migrate.plain.ranks.data.losses.batch_totals import BatchTotals
from ds_migrate.plain.ranks.data.losses.sample_values import SampleValues
from ds_migrate.plain.recognition.batches.loaders import loaders_of
from ds_migrate.syntax.nodes import dotted, walk
from ds_migrate.syntax.source import SourceFile

_DEPTH = 3  # of calls, from a loop
Place = cst.For | cst.FunctionDef


class Collections:
    """The samples that the training loops of a program collect, by the variables that keep them.

    Attributes:
        places: the loops and functions that collect in each variable.
        samples: the expressions that have something for each sample.
    """

    def __init__(self, plan: ProgramPlan, files: list[SourceFile], totals: BatchTotals, values: RankValues) -> None:
        self._flow = plan.facts.flow
        self._callers = plan.facts.flow.callers
        self._by_rank = values
        self.samples = SampleValues(plan, totals)
        self._seen = set[int]()
        self.places: dict[Variable, list[Place]] = {}
        training = training_nodes(plan.facts)
        for file in files:
            for loop in file.nodes(cst.For):
                is_training = any(id(part) in training for part in walk(loop.body))
                if is_training and self._is_over_share(loop, file):
                    self._collect(loop, file, _DEPTH)

    def _is_over_share(self, loop: cst.For, file: SourceFile) -> bool:
        """Return whether a loop goes over a share of the data, or counts the batches of one and draws them."""
        if self._by_rank.are_shares(loaders_of(loop.iter, file, self._flow)):
            return True
        named = [
            v
            for part in walk(loop.iter)
            if isinstance(part, cst.Name)
            for v in file.values_of({part.value}, file.function(loop) or file.module)
        ]
        lengths = [
            part.args[0].value for node in (loop.iter, *named) for part in walk(node)
            if isinstance(part, cst.Call) and dotted(part.func) == "len" and part.args
        ]  # fmt: skip
        return any(self._by_rank.are_shares(loaders_of(length, file, self._flow)) for length in lengths)

    def _collect(self, place: Place, file: SourceFile, depth: int) -> None:
        """Add what a loop, or a function that it calls, collects.

        Args:
            place: the loop or function.
            file: of it.
            depth: of the calls that are followed from here.
        """
        for into, value in collected_items(place, file):
            if self.samples.holds(value, file):
                for variable in self._callers.variables(into, file):
                    self.places.setdefault(variable, []).append(place)
        for call in file.nodes(cst.Call, below=place.body) if depth else ():
            for function in of_kind(self._flow.values(call.func, file), Kind.FUNCTION, Kind.METHOD):
                node, home = self._flow.node(function), self._flow.file(function)
                if isinstance(node, cst.FunctionDef) and id(node) not in self._seen:
                    self._seen.add(id(node))
                    self._collect(node, home, depth - 1)
