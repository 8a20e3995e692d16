"""Expressions that a loss is made of, by names, functions of the program, and forward passes of its classes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import libcst as cst

from ds_migrate.plain.dataflow.scopes import names_in
from ds_migrate.plain.decisions.plan import ProgramPlan
from ds_migrate.plain.ranks.data.losses.batch_totals import BatchTotals
from ds_migrate.plain.ranks.data.losses.returned_values import index_in, item_of, returned_values
from ds_migrate.syntax.nodes import dotted, targets, walk
from ds_migrate.syntax.source import SourceFile


class LossPart(NamedTuple):
    """A node that a loss is made of, and whether it is in the forward pass of a model whose output it is made of."""

    file: SourceFile
    node: cst.CSTNode
    is_in_model: bool


def loss_parts(plan: ProgramPlan, totals: BatchTotals) -> list[LossPart]:
    """Return all that the losses of a program's loops are made of, each node once."""
    finder = _Finder(plan, totals)
    found = (part for b in plan.fed for part in finder.parts(LossPart(b.file, b.loss, is_in_model=False)))
    return list({id(part.node): part for part in found}.values())


class _Finder:
    def __init__(self, plan: ProgramPlan, totals: BatchTotals) -> None:
        self._flow = plan.facts.flow
        self._totals = totals
        self._modules = frozenset(value for site in plan.facts.sites for value in site.of)

    def parts(self, loss: LossPart) -> Iterator[LossPart]:
        """Yield a loss, and all that it is made of."""
        todo, seen = [loss], set[object]()
        for start in todo:  # grows
            for node in walk(start.node) if id(start.node) not in seen else ():
                yield start._replace(node=node)
                if isinstance(node, cst.Name) and (variable := self._flow.variable(node, start.file)) not in seen:
                    seen.add(variable)
                    for line in self._flow.scopes(start.file).nodes(node, cst.Assign, cst.AugAssign):
                        todo += [start._replace(node=value) for value in _values_of(line, node)]
                        todo += self._unpacked(line, node, start)
                        if isinstance(line, cst.AugAssign) and dotted(line.target) == node.value:
                            yield start._replace(node=line)
                        elif _takes_apart(line, node):
                            yield start._replace(node=line.value)
                    todo += [start._replace(node=call) for call in self._changes(node, start.file)]
                elif isinstance(node, cst.Call):
                    todo += self._returned(node, start)
            seen.add(id(start.node))

    def _changes(self, name: cst.Name, file: SourceFile) -> Iterator[cst.CSTNode]:
        """Yield the calls that add to a list, or change a tensor in place: ``x.append(y)``, ``x.addmm_(y, z)``."""
        for method, attributes in file.attributes_by_name.items():
            is_change = method in ("append", "extend") or (method.endswith("_") and not method.endswith("__"))
            for node in attributes if is_change else ():
                call = file.parent(node)
                is_named = isinstance(node.value, cst.Name) and node.value.value == name.value
                is_called = is_named and isinstance(call, cst.Call) and call.func is node
                if is_called and self._flow.variable(node.value, file) == self._flow.variable(name, file):
                    yield call or node

    def _unpacked(self, line: cst.Assign | cst.AugAssign, name: cst.Name, start: LossPart) -> Iterator[LossPart]:
        """Yield what a variable gets of a call that returns several, and what the call is given."""
        call = line.value
        if not _takes_apart(line, name) or not isinstance(call, cst.Call):
            return
        yield from (start._replace(node=part) for part in (call.func, *(arg.value for arg in call.args)))
        yield from self._returned(call, start, index_in(line, name.value))

    def _returned(self, call: cst.Call, start: LossPart, index: int | None = None) -> Iterator[LossPart]:
        """Yield what a call returns, or its item at an index; a model that returns its loss is one like a criterion."""
        is_model = bool(self._flow.values(call.func, start.file) & self._modules)
        for home, value in returned_values(call, start.file, self._flow):
            gives_outputs = is_model and not self._totals.is_total(value, home)
            yield LossPart(home, item_of(value, index), start.is_in_model or gives_outputs)


def _values_of(line: cst.Assign | cst.AugAssign, name: cst.Name) -> Iterator[cst.CSTNode]:
    """Yield what a line sets a variable to, or what it sets of it, with the index."""
    names = [one for target in targets(line) for one in names_in(target)]
    items = [target for target in targets(line) if isinstance(target, cst.Subscript) and target.value.deep_equals(name)]
    if items or (name.value in names and not _takes_apart(line, name)):
        yield line.value
    yield from items


def _takes_apart(line: cst.Assign | cst.AugAssign, name: cst.Name) -> bool:
    return isinstance(line.value, cst.Call) and any(
        isinstance(target, cst.Tuple) and name.value in names_in(target) for target in targets(line)
    )
