"""Sources of data on another path than a DataLoader: every rank draws all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, Value, Values, of_kind
from ds_migrate.plain.decisions.plan import Note
from ds_migrate.plain.recognition.batches.batch_sources import sources_of
from ds_migrate.plain.recognition.batches.loaders import loaders_in, parts_of
from ds_migrate.plain.recognition.facts import LoopFacts, Step
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import walk
from ds_migrate.syntax.one_line import expression_text
from ds_migrate.syntax.source import SourceFile


def other_sources(steps: Sequence[Step], facts: LoopFacts, advice: str) -> Iterator[Note]:
    """Yield calls of libraries whose result a loop may run over in the place of a DataLoader, and classes like that."""
    flow = facts.flow
    found: dict[int, tuple[SourceFile, cst.Call | cst.ClassDef]] = {}
    for step in steps:
        for file, node in sources_of(step.file, step.node, facts, depth=3):
            for value in flow.in_order(_objects_for_loaders(node, file, flow)):
                if value.key not in found:
                    made = flow.node(value)
                    if isinstance(made, cst.Call) and _is_given_loader(made, flow.file(value), flow):
                        continue
                    if isinstance(made, (cst.Call, cst.ClassDef)):
                        found[value.key] = flow.file(value), made
    for file, made in found.values():
        name = made.name.value if isinstance(made, cst.ClassDef) else expression_text(made.func)
        message = f"{name}() may feed the step in the place of a DataLoader: several ranks train on the same data then"
        yield Note(Code.PLAIN_SAMPLER, file, made, message, advice)


def _objects_for_loaders(node: cst.BaseExpression, file: SourceFile, flow: Flow, depth: int = 4) -> Values:
    """Return the objects that a loop may run over in the place of a loader, through ``enumerate()`` and the like."""
    values = flow.values(node, file)
    if of_kind(values, Kind.LOADER):
        own = {v for v in of_kind(values, Kind.INSTANCE) if _makes_batches(v, flow)}
        return of_kind(values, Kind.OBJECT) | own
    parts = parts_of(node, file, flow) if depth else []
    return frozenset(value for part in parts for value in _objects_for_loaders(part, file, flow, depth - 1))


def _makes_batches(instance: Value, flow: Flow) -> bool:
    """Return whether an object of a class of the program can be run over, and takes its batches from no loader."""
    is_run_over = flow.classes.method(instance.key, "__iter__") is not None
    return is_run_over and not loaders_in(frozenset({instance}), flow, depth=4)


def _is_given_loader(call: cst.Call, file: SourceFile, flow: Flow) -> bool:
    """Return whether a call is given a loader, or what may be one: it passes its batches on."""
    given = [n for arg in call.args for n in walk(arg.value) if isinstance(n, (cst.Name, cst.Attribute, cst.Call))]
    return any(of_kind(flow.values(node, file), Kind.LOADER) for node in given)
