"""The loaders whose batches training steps use, without those of calls that skip the steps."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from ds_migrate.plain.dataflow.branches.dead_branches import leaves_out
from ds_migrate.plain.dataflow.branches.written_rounds import (
    Bindings,
    constant_of,
    is_left_out,
    item_in_round,
    rounds_of,
)
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, Values, of_kind
from ds_migrate.plain.recognition.batches.batch_sources import sources_of
from ds_migrate.plain.recognition.batches.loaders import loaders_of
from ds_migrate.plain.recognition.batches.phases import other_phases
from ds_migrate.plain.recognition.facts import LoopFacts, Step
from ds_migrate.syntax.nodes import dotted, parameters, walk
from ds_migrate.syntax.source import SourceFile

_Below = tuple[cst.Call, SourceFile, cst.FunctionDef, cst.CSTNode, SourceFile]


def training_loaders(steps: Sequence[Step], facts: LoopFacts) -> list[tuple[SourceFile, cst.Call]]:
    """Return the calls that make the loaders whose batches the steps are made of."""
    found: dict[int, tuple[SourceFile, cst.Call]] = {}
    for step in steps:
        for file, node in sources_of(step.file, step.node, facts, depth=3):
            loaders = loaders_of(node, file, facts.flow)
            for value in facts.flow.in_order(loaders - other_phases(step, file, node, facts.flow)):
                maker = facts.flow.node(value)
                assert isinstance(maker, cst.Call)
                found[id(maker)] = facts.flow.file(value), maker
        idle, busy = _given(step.file, step.node, facts, depth=3)
        unused, used = _in_rounds(step, facts.flow)
        for value in (idle | unused) - busy - used:
            found.pop(value.key, None)
    return list(found.values())


def _given(
    file: SourceFile,
    node: cst.CSTNode,
    facts: LoopFacts,
    depth: int,
    names: frozenset[str] | None = None,
    below: _Below | None = None,
) -> tuple[Values, Values]:
    """Return the loaders that calls of the functions around a node are given, without it and with it running.

    Args:
        names: the parameters of the function around the node that matter; None for all.
        below: where the node is a call, the node in its function that this is asked for.
    """
    idle: Values = frozenset()
    busy: Values = frozenset()
    function = file.function(node)
    for caller, call in facts.flow.callers.of(function) if function is not None and depth else ():
        assert function is not None
        args = _arguments(call, function, caller, names, facts.flow)
        for bindings in rounds_of(call, caller, facts.flow):
            held = [(arg, found) for arg in args if (found := _held(arg, caller, bindings, facts.flow))]
            if (
                leaves_out(call, caller, function, node, file, facts.flow, bindings)
                or is_left_out(call, caller, bindings, facts.flow)
                or (
                    below is not None and leaves_out(*below, facts.flow, _constants(call, caller, function, facts.flow))
                )
            ):
                idle |= frozenset().union(*(found for _, found in held))
                continue
            around = caller.function(call)
            calls = facts.flow.callers.of(around) if around is not None and depth > 1 else ()
            known = {p.name.value for p in parameters(around)} if around is not None and calls else set()
            passed = frozenset(arg.value for arg, _ in held if isinstance(arg, cst.Name)) & known
            busy |= frozenset(v for arg, found in held if dotted(arg) not in passed for v in found)
            if passed or not held:  # what is passed on is what each call around gives
                inner = call, caller, function, node, file
                deeper, others = _given(caller, call, facts, depth - 1, passed or None, inner)
                idle, busy = idle | deeper, busy | others
    return idle, busy


def _constants(call: cst.Call, file: SourceFile, function: cst.FunctionDef, flow: Flow) -> Bindings:
    """Return the parameters of a function for which a call gives a constant, with it."""
    given = ((p.name.value, flow.given(call, function, p.name.value, file)) for p in parameters(function))
    return {name: arg.value for name, arg in given if arg is not None and constant_of(arg.value, {}, file, flow, 0)}


def _in_rounds(step: Step, flow: Flow) -> tuple[Values, Values]:
    """Return the loaders that a loop around a step has in rounds without it and with it running."""
    idle: Values = frozenset()
    busy: Values = frozenset()
    loops = [outer for outer in step.file.ancestors(step.node) if isinstance(outer, cst.For)]
    parts = [part for loop in loops for part in walk(loop.iter) if isinstance(part, cst.Name)]
    for bindings in rounds_of(step.node, step.file, flow):
        bound = [part for part in parts if item_in_round(part, bindings, step.file, flow) is not part]
        found = frozenset(v for part in bound for v in _held(part, step.file, bindings, flow))
        if is_left_out(step.node, step.file, bindings, flow):
            idle |= found
        else:
            busy |= found
    return idle, busy


def _held(arg: cst.BaseExpression, file: SourceFile, bindings: Bindings, flow: Flow) -> Values:
    """Return the loaders that an expression iterates over in one round of a loop around it."""
    item = item_in_round(arg, bindings, file, flow)
    index = item.slice[0].slice if isinstance(item, cst.Subscript) else None
    key = constant_of(index.value, bindings, file, flow) if isinstance(index, cst.Index) and bindings else ""
    if isinstance(item, cst.Subscript) and key:
        mappings = of_kind(flow.values(item.value, file), Kind.MAPPING)
        found = [values for m in mappings for k, values in flow.literal_items(m) if k == f"[{key}]".replace("'", '"')]
        return of_kind(frozenset().union(*found), Kind.LOADER)
    return loaders_of(item, file, flow)


def _arguments(
    call: cst.Call, function: cst.FunctionDef, file: SourceFile, names: frozenset[str] | None, flow: Flow
) -> list[cst.BaseExpression]:
    """Return what a call gives to some parameters of a function, or to all."""
    if names is None:
        return [arg.value for arg in call.args]
    given = (flow.given(call, function, name, file) for name in sorted(names))
    return [arg.value for arg in given if arg is not None]
