"""Changes of gradients between ``backward()`` and ``step()``: kept where they do the same to averaged gradients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import libcst as cst

from ds_migrate.plain.dataflow.branches.pure_operations import CHANGES
from ds_migrate.plain.dataflow.by_rank.rank_conditions import RankConditions
from ds_migrate.plain.decisions.gradients.averaging import find_averagings
from ds_migrate.plain.decisions.gradients.gradient_reads import find_reads
from ds_migrate.plain.decisions.plan import Note, ProgramPlan
from ds_migrate.plain.recognition.facts import Place, Refusal
from ds_migrate.plain.recognition.origins.function_uses import class_around
from ds_migrate.plain.recognition.steps.common_tensors import CommonTensors
from ds_migrate.plain.recognition.steps.operations import is_set_to_none, is_set_to_zero
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import called_name, indices_of
from ds_migrate.syntax.source import SourceFile

_LINEAR = (cst.AddAssign, cst.SubtractAssign, cst.MultiplyAssign, cst.DivideAssign)
_LINEAR_METHODS = frozenset({"add_", "sub_", "mul_", "div_", "masked_fill_"})
_NO_CHANGE = ("__", "detach_", "requires_grad_")


def decide_changes(plan: ProgramPlan) -> ProgramPlan:
    """Refuse changes of gradients, but for those of an engine that has averaged them by then, in its parameters.

    That is where it averages them in ``backward()``, or is made to before the change, at stage 0, and the change is the
    same on all ranks. What such a change adds or multiplies by, the mean of all ranks' gradients gets as well where
    ``step()`` averages them later.
    """
    has_runtime = plan.facts.options.runtime
    averagings = [*plan.averagings]
    flow = plan.facts.flow
    averaged = RankConditions(flow, CommonTensors(flow).is_common)
    of_shares = RankConditions(flow, CommonTensors(flow, are_averaged=False).is_common)
    refusals = []
    for place, values in acting_changes(plan):
        is_same = values is not None and all(averaged.is_shared(value, place.file) for value in values)
        is_linear = is_same and _is_linear(place.node, place.file)
        is_kept = plan.is_managed or (is_linear and all(of_shares.is_shared(v, place.file) for v in values or ()))
        before = [] if is_kept else find_averagings(place, plan)
        averagings += before
        if not (has_runtime and is_same and (is_kept or before)):
            refusals.append(
                Refusal(
                    Code.PLAIN_GRADIENTS, place.file, place.node, "gradients are changed between backward() and step()",
                    "express the change as a term of the loss, or as a hook on the parameters",
                )
            )  # fmt: skip
            break
    reads, left = ([], []) if plan.is_managed or plan.refusals or refusals else find_reads(plan)
    lines = {id(place.file.statement(place.node)): place for place in left}
    notes = [
        Note(
            Code.PLAIN_BACKWARD, place.file, place.node,
            "no step() uses these gradients, so each rank reads those of its share of the data",
            "average what is made of them over ranks, or go through the same data on each rank",
        )
        for place in lines.values()
    ]  # fmt: skip
    return replace(plan, averagings=[*averagings, *reads], notes=[*plan.notes, *notes]).refuse(refusals)


def acting_changes(plan: ProgramPlan) -> Iterator[tuple[Place, list[cst.BaseExpression] | None]]:
    """Yield the changes of gradients that steps use, with what decides on them; None for any others."""
    for file in plan.facts.flow.files.values():
        for node, values in _changes(file):
            if not plan.facts.operations.is_attacked(node.value, file) and _acts_on_steps(node, file, plan):
                yield Place(file, node), values


def _acts_on_steps(node: cst.CSTNode, file: SourceFile, plan: ProgramPlan) -> bool:
    """Return whether a change is in a file that steps, in use, or in a function that one of its functions calls."""
    function, steps = file.function(node), plan.facts.operations.steps
    if _is_of_step(function, file, plan):
        return False
    if any(step.file is file for step in steps):
        return function is None or _is_named(function, plan)
    if function is None:
        return False
    callers = plan.facts.flow.callers
    return any(
        callers.reaches(id(step.function), function) if step.function is not None
        else any(caller is step.file for caller, _ in callers.of(function))
        for step in steps
    )  # fmt: skip


def _is_of_step(function: cst.FunctionDef | None, file: SourceFile, plan: ProgramPlan, depth: int = 4) -> bool:
    """Return whether the ``step()`` of a class of optimizers alone runs a method of it, with averaged gradients."""
    around = class_around(function, file) if function is not None else None
    files = plan.facts.flow.files.values()
    if function is None or around is None or not plan.facts.flow.classes.is_optimizer(around, file):
        return False
    if function.name.value == "step":
        return True
    used = [(other, n) for other in files for n in other.attributes_by_name.get(function.name.value, ())]
    return depth > 0 and bool(used) and all(_is_of_step(f.function(n), f, plan, depth - 1) for f, n in used)


def _is_named(function: cst.FunctionDef, plan: ProgramPlan) -> bool:
    """Return whether something in the program names a function: a call, an import or a decorator."""
    return bool(function.decorators) or any(
        node.value == function.name.value and node is not function.name
        for file in plan.facts.flow.files.values()
        for node in file.spelled(function.name.value)
        if isinstance(node, cst.Name)
    )


def _is_linear(gradient: cst.CSTNode, file: SourceFile) -> bool:
    """Return whether a change adds to gradients, or multiplies them: then it may precede or follow their mean."""
    statement = file.around(gradient, cst.AugAssign, cst.Call)
    if isinstance(statement, cst.AugAssign):
        return isinstance(statement.operator, _LINEAR)
    return isinstance(statement, cst.Call) and called_name(statement) in _LINEAR_METHODS


def _changes(file: SourceFile) -> Iterator[tuple[cst.Attribute, list[cst.BaseExpression] | None]]:
    """Yield writes to gradients, with what decides which numbers are written; None where that is not known."""
    for node in file.attributes_by_name.get("grad", ()):
        parent = file.parent(node)
        chain: cst.CSTNode = node
        while isinstance(parent, (cst.Attribute, cst.Subscript)) and parent.value is chain:
            chain, parent = parent, file.parent(parent)
        indices = list(indices_of(chain))
        if isinstance(parent, cst.AugAssign) and parent.target is chain:
            yield node, [parent.value, *indices]
        elif isinstance(parent, cst.AssignTarget):
            assign = file.parent(parent)
            if not (is_set_to_none(chain, file) or is_set_to_zero(chain, file)):
                yield node, [assign.value, *indices] if isinstance(assign, cst.Assign) else None
        elif isinstance(parent, cst.Call) and parent.func is chain and isinstance(chain, cst.Attribute):
            name = chain.attr.value
            is_cleared = name == "zero_" and not indices
            if name.endswith("_") and not name.endswith(_NO_CHANGE) and not is_cleared:
                yield node, [*(arg.value for arg in parent.args), *indices] if name in CHANGES else None
