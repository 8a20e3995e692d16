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
_Objects = frozenset[Variable | None]  # None for the only one of its class
_ANY: _Objects = frozenset({None})


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
        self._seen = set[tuple[int, _Objects]]()
        self._receivers: dict[int, _Objects] = {}
        self.places: dict[Variable, list[Place]] = {}
        training = training_nodes(plan.facts)
        for file in files:
            for loop in file.nodes(cst.For):
                is_training = any(id(part) in training for part in walk(loop.body))
                if is_training and self._is_over_share(loop, file):
                    self._collect(loop, file, _ANY, _DEPTH)

    def may_be_of(self, owner: cst.BaseExpression, function: cst.FunctionDef | None, file: SourceFile) -> bool:
        """Return whether an object may be one in which a loop collects, where others of its class are none.

        Args:
            owner: the object.
            function: a method of its class.
            file: of the owner.
        """
        receivers = self._receivers.get(id(function and self._class_of(function)), _ANY)
        return None in receivers or not receivers.isdisjoint(self._callers.variables(owner, file))

    def _class_of(self, function: cst.FunctionDef) -> cst.ClassDef | None:
        found = self._flow.node_of(id(function))
        return found[0].class_around(function) if found is not None else None

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

    def _collect(self, place: Place, file: SourceFile, receivers: _Objects, depth: int) -> None:
        """Add what a loop, or a function that it calls, collects.

        Args:
            place: the loop or function.
            file: of it.
            receivers: the objects whose method the function is.
            depth: of the calls that are followed from here.
        """
        for into, value in collected_items(place, file):
            if self.samples.holds(value, file):
                for variable in self._callers.variables(into, file):
                    self.places.setdefault(variable, []).append(place)
                owner = file.class_around(place) if isinstance(place, cst.FunctionDef) else None
                if owner is not None:
                    self._receivers[id(owner)] = self._receivers.get(id(owner), frozenset()) | receivers
        for call in file.nodes(cst.Call, below=place.body) if depth else ():
            for function in of_kind(self._flow.values(call.func, file), Kind.FUNCTION, Kind.METHOD):
                node, home = self._flow.node(function), self._flow.file(function)
                of = self._objects(call, receivers, file)
                if isinstance(node, cst.FunctionDef) and (id(node), of) not in self._seen:
                    self._seen.add((id(node), of))
                    self._collect(node, home, of, depth - 1)

    def _objects(self, call: cst.Call, around: _Objects, file: SourceFile) -> _Objects:
        """Return the objects whose method a call is of; in a method, ``self`` is those around the call."""
        owner = call.func.value if isinstance(call.func, cst.Attribute) else None
        is_same = owner is None or dotted(owner) in ("self", "super")
        return around if is_same or owner is None else self._callers.variables(owner, file)
