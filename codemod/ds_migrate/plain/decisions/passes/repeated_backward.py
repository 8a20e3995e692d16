"""Backward passes whose gradients DistributedDataParallel did not average, as the engine does."""

from __future__ import annotations

from dataclasses import replace

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.torch_names import DISTRIBUTED
from ds_migrate.plain.dataflow.values import Kind, Value, Values, of_kind
from ds_migrate.plain.decisions.plan import Note, ProgramPlan
from ds_migrate.plain.recognition.facts import Backward, LoopFacts
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.shared_forwards import BackwardPass, SharedForwards
from ds_migrate.syntax.source import SourceFile


def review_repeated(plan: ProgramPlan) -> ProgramPlan:
    """Report each backward pass through a forward pass of DistributedDataParallel that another one went through."""
    wrapped = wrapped_modules(plan.facts)
    if not wrapped:
        return plan
    by_function: dict[tuple[int, int], list[Backward]] = {}
    for backward in plan.facts.operations.backwards:
        by_function.setdefault((id(backward.file), id(backward.function)), []).append(backward)
    notes: list[Note] = []
    for found in by_function.values():
        file, scope = found[0].file, found[0].function or found[0].file.module
        by_call = {id(each.call): each for each in found}
        passes = [
            BackwardPass(each.call, each.loss, each.retains_graph) for each in sorted(found, key=lambda b: b.position)
        ]
        runs = _ModelsRun(wrapped, file, plan.facts.flow)
        shared = SharedForwards(file, scope, passes, runs, runs.once)
        notes += [
            Note(
                Code.PLAIN_BACKWARD, file, by_call[id(later.call)].node,
                "a backward pass through a forward pass that another one went through: on several ranks "
                "DistributedDataParallel left each rank its own gradients of it, the engine averages them",
                "add the losses and call backward once, and both train the same",
            )
            for later in shared.unaveraged()
        ]  # fmt: skip
    return replace(plan, notes=[*plan.notes, *notes])


def wrapped_modules(facts: LoopFacts) -> Values:
    """Return the trained modules that are given to DistributedDataParallel."""
    trained = frozenset(value for site in facts.sites for value in site.of)
    return trained & frozenset(
        value
        for file, call in facts.flow.nodes(cst.Call)
        if facts.flow.is_call_of(call, file, DISTRIBUTED)
        for value in facts.flow.values(call, file)
    )


class _ModelsRun:
    """The wrapped modules that a call runs: itself, or in a function that it calls or gives one."""

    def __init__(self, wrapped: Values, file: SourceFile, flow: Flow) -> None:
        self._wrapped, self._file, self._flow = wrapped, file, flow

    def __call__(self, call: cst.Call) -> frozenset[object]:
        return self._run(self._file, call, frozenset())

    def once(self, call: cst.Call) -> bool:
        """Return whether a call is one of a wrapped module."""
        return bool(self._flow.values(call.func, self._file) & self._wrapped)

    def _run(self, file: SourceFile, call: cst.Call, above: frozenset[Value]) -> frozenset[object]:
        func = call.func
        if isinstance(func, cst.Attribute) and func.attr.value == "forward":
            func = func.value  # of a wrapper: it calls its module
        callees = self._flow.values(func, file)
        found: set[object] = set(callees & self._wrapped)
        is_used = not isinstance(file.parent(call), cst.Expr) and not self._flow.is_call_of(call, file, DISTRIBUTED)
        if not found and is_used:
            found = {value for arg in call.args for value in self._flow.values(arg.value, file) & self._wrapped}
        for function in of_kind(callees, Kind.FUNCTION, Kind.METHOD) - above:
            own = self._flow.file(function)
            for inner in own.nodes(cst.Call, below=self._flow.node(function)):
                found |= self._run(own, inner, above | {function})
        return frozenset(found)
