"""Data that each rank may draw whole: of other sources than a DataLoader, or where it is unknown which loop trains."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, Value, Values, of_kind
from ds_migrate.plain.decisions.plan import Note
from ds_migrate.plain.recognition.batches.batch_sources import sources_of
from ds_migrate.plain.recognition.batches.loader_rounds import is_of_batch
from ds_migrate.plain.recognition.batches.loaders import loaders_in, loaders_of, parts_of
from ds_migrate.plain.recognition.facts import Backward, LoopFacts, Step
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.branches import upwards
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


def undecided_training(makers: Collection[int], facts: LoopFacts) -> Iterator[Note]:
    """Yield a note for each loop over several divided loaders whose backward pass is under a condition on no batch.

    Args:
        makers: the calls whose loaders are divided, by identity.
    """
    seen = set[int]()
    for backward in facts.operations.backwards:
        conditions = list[cst.If]()
        for inner, outer in upwards(backward.file, backward.node):
            if isinstance(outer, cst.FunctionDef):
                break
            if isinstance(outer, cst.If) and inner is not outer.test:
                conditions.append(outer)
            if isinstance(outer, cst.For):
                found = {id(facts.flow.node(v)) for v in loaders_of(outer.iter, backward.file, facts.flow)}
                asked = [one for one in conditions if not is_of_batch(one.test, outer, backward.file)]
                asked = [one for one in asked if not _trains_in_both(one, backward, facts)]
                if len(found & set(makers)) > 1 and asked and id(outer) not in seen:
                    seen.add(id(outer))
                    message = "a condition decides whether this trains: it may evaluate a rank's share of a loader"
                    advice = "call its function with True or False, as written, or reduce the metrics over ranks"
                    yield Note(Code.PLAIN_SAMPLER, backward.file, asked[-1].test, message, advice)


def _trains_in_both(condition: cst.If, backward: Backward, facts: LoopFacts) -> bool:
    """Return whether the other branch of a condition has a backward pass, too."""
    others = {id(one.node) for one in facts.operations.backwards if one is not backward}
    inside = {id(part) for part in walk(condition.body)}
    other = condition.orelse if id(backward.node) in inside else condition.body
    return other is not None and any(id(part) in others for part in walk(other))
