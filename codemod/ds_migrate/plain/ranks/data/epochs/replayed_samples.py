"""Samples that a training loop keeps, and makes later losses of: replay buffers, memories, queues and prototypes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import libcst as cst

from ds_migrate.plain.dataflow.containers.iteration import loops_of
from ds_migrate.plain.dataflow.values import Kind, Variable, of_kind
from ds_migrate.plain.decisions.plan import Note, ProgramPlan
from ds_migrate.plain.ranks.data.epochs.collections import Collections
from ds_migrate.plain.ranks.data.losses.loss_parts import LossPart
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import dotted, last_name, set_values, walk
from ds_migrate.syntax.source import SourceFile


def replayed_samples(
    plan: ProgramPlan, parts: Iterable[LossPart], collections: Collections, noted: Collection[int]
) -> Iterator[Note]:
    """Yield a note for each variable in which a loop collects samples of a share, and of which a loss is made.

    Args:
        noted: the functions, by identity, that have another note about their loss.
    """
    flow = plan.facts.flow
    seen = set[object]()
    for file, node in _read(parts):
        variable = flow.variable(node, file)
        places = collections.places.get(variable) if variable is not None else None
        function = id(file.function(node) or file.module)
        is_seen = not seen.isdisjoint({variable, function})
        if variable is None or not places or is_seen or of_kind(flow.values(node, file), Kind.INSTANCE):
            continue
        seen |= {variable, function}
        is_noted = function in noted or any(id(place) in noted for place in places)
        if not is_noted and not any(_begins_again(variable, other, plan) for other in flow.files.values()):
            message = f"each rank collects samples of its share of the data in {dotted(node)}, for its own loss"
            advice = (
                "have each rank collect those of all, which torch.distributed.all_gather_object() gives it, "
                "or leave it: n ranks then hold n times as many"
            )
            yield Note(Code.PLAIN_AGREEMENT, file, node, message, advice)


def _read(parts: Iterable[LossPart]) -> Iterator[tuple[SourceFile, cst.Name | cst.Attribute]]:
    """Yield the names and attributes of which losses are made, and those in what a loop around one goes through."""
    for file, node, is_in_model in parts:
        if not is_in_model and isinstance(node, (cst.Name, cst.Attribute)):
            yield file, node
            over = [loop.iter for loop in loops_of(node, file)] if isinstance(node, cst.Name) else []
            names = (part for expression in over for part in walk(expression))
            yield from ((file, part) for part in names if isinstance(part, (cst.Name, cst.Attribute)))


def _begins_again(variable: Variable, file: SourceFile, plan: ProgramPlan) -> bool:
    """Return whether a line empties a variable, as for each batch: ``self.outputs = []``, ``outputs.clear()``."""
    flow, name = plan.facts.flow, variable[1].rpartition(".")[2]
    for line in file.nodes(cst.Assign, cst.AnnAssign):
        function = file.function(line)
        is_init = function is None or function.name.value == "__init__"
        for target, value in set_values(line) if not is_init else ():
            is_empty = isinstance(value, (cst.List, cst.Dict)) and not value.elements
            if is_empty and isinstance(target, cst.Attribute) and flow.variable(target, file) == variable:
                return True
    clears = file.attributes_by_name.get("clear", ())
    return any(last_name(each.value) == name for each in clears)
