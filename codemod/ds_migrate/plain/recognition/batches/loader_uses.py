"""The uses of what a call makes loaders for: training alone, or evaluation too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.recognition.batches.loaders import loaders_of
from ds_migrate.plain.recognition.facts import LoopFacts, Step
from ds_migrate.syntax.branches import upwards
from ds_migrate.syntax.nodes import dotted, targets, walk
from ds_migrate.syntax.source import SourceFile

_PASSES_ON = frozenset(
    {"enumerate", "tqdm", "tqdm.tqdm", "tqdm.auto.tqdm", "trange", "zip", "len", "isinstance", "print"}
)


def only_trains(maker: cst.Call, file: SourceFile, steps: Sequence[Step], facts: LoopFacts) -> bool:
    """Return whether each loop over loaders that a call makes steps an optimizer in each round.

    Loaders that a function hands out are for several purposes where several lines call it.
    """
    function = file.function(maker)
    is_several = function is not None and facts.flow.callers.has_several(function)
    return not (is_several and _is_handed_out(maker, file, facts)) and all(
        isinstance(loop, cst.For) and any(_steps_each_round(loop, at, step, facts) for step in steps)
        for at, loop in _uses(maker, facts)
    )


def _is_handed_out(maker: cst.Call, file: SourceFile, facts: LoopFacts) -> bool:
    """Return whether the function around a call returns what it makes, or keeps it in an object."""
    function = file.function(maker)
    kept = [line.value for line in file.nodes(cst.Assign) if any(isinstance(t, cst.Attribute) for t in targets(line))]
    given = [node.value for node in file.nodes(cst.Return, cst.Yield) if node.value is not None]
    return any(
        facts.flow.node(value) is maker
        for outside in (*kept, *given)
        if file.function(outside) is function
        for part in walk(outside)
        if isinstance(part, cst.BaseExpression)
        for value in of_kind(facts.flow.values(part, file), Kind.LOADER)
    )


def _uses(maker: cst.Call, facts: LoopFacts) -> Iterator[tuple[SourceFile, cst.CSTNode]]:
    """Yield the loops over what a call makes, and the calls that it is given to and nothing is known of."""
    flow = facts.flow
    for file in flow.files.values():
        for loop in file.nodes(cst.For, cst.CompFor):
            if any(flow.node(value) is maker for value in loaders_of(loop.iter, file, flow)):
                yield file, loop
        for call in file.nodes(cst.Call):
            callees = flow.values(call.func, file)
            if dotted(call.func) in _PASSES_ON or of_kind(callees, Kind.FUNCTION, Kind.METHOD, Kind.CLASS):
                continue
            for arg in call.args:
                if any(flow.node(value) is maker for value in of_kind(flow.values(arg.value, file), Kind.LOADER)):
                    yield file, call


def _steps_each_round(loop: cst.For, file: SourceFile, step: Step, facts: LoopFacts) -> bool:
    """Return whether a step is under no condition within a loop, nor is the call of the function that does it."""
    if any(outer is loop for outer in step.file.ancestors(step.node)):
        return _always_runs(step.node, step.file, loop)
    function = step.function
    calls = [call for at, call in facts.flow.callers.of(function) if at is file] if function is not None else []
    return (
        function is not None
        and _always_runs(step.node, step.file, function)
        and any(any(o is loop for o in file.ancestors(call)) and _always_runs(call, file, loop) for call in calls)
    )


def _always_runs(node: cst.CSTNode, file: SourceFile, around: cst.For | cst.FunctionDef) -> bool:
    """Return whether a node runs whenever what is around it does: nothing decides on it, or leaves before it."""
    leaves = file.nodes(cst.Return, cst.Continue, below=around.body)
    if any(file.position(jump) < file.position(node) for jump in leaves):
        return False
    for _, outer in upwards(file, node):
        if outer is around:
            return True
        if isinstance(outer, (cst.If, cst.IfExp, cst.BooleanOperation, cst.Try, cst.TryStar, cst.Match, cst.Lambda)):
            return False
    return False
