"""Convert ``context.step_optimizer(optimizer)`` to ``engine.step()``."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.conversion.rule_context import RuleContext
from ds_migrate.decisions.engine_layout import Form
from ds_migrate.rules.codes import Code
from ds_migrate.rules.dsm204_gradient_clipping import clip_in, keeps_function, kept_clip
from ds_migrate.syntax.nodes import argument, dotted, has_star, is_literal, walk
from ds_migrate.syntax.one_line import expression_text
from ds_migrate.trial.control_flow import runs_once
from ds_migrate.trial.gradient_access import handles_gradients
from ds_migrate.trial.model import Step

CODE = Code.STEP_OPTIMIZER


def apply(ctx: RuleContext) -> None:
    for step in (*ctx.trial.steps, *_helpers(ctx)):
        ctx.handle(step.use)
        file, call = step.use.file, step.call
        problem = _problem(ctx, step)
        if problem is not None:
            ctx.blocked(CODE, file, call, *problem)
            continue
        engine = _engine(ctx, step, step.optimizer)
        if file.edits.once(call, CODE):
            _rewrite(ctx, step)
        ctx.converted(CODE, file, call, f"{engine} steps: it clips, updates and clears the gradients")


def _helpers(ctx: RuleContext) -> Iterator[Step]:
    """Yield the steps that helpers outside of the trial make."""
    for use in ctx.trial.helpers:
        given = argument(use.call, 0, "optimizer") if use.attr == "step_optimizer" and use.call is not None else None
        if given is not None and use.call is not None:
            clip = argument(use.call, 1, "clip_grads")
            kept = clip.value if clip is not None and not is_literal(clip.value, "None") else None
            yield Step(use, use.call, given.value, None, kept)


def _engine(ctx: RuleContext, step: Step, optimizer: cst.BaseExpression) -> str:
    if ctx.plan.form is Form.COLLECTED:
        context = ctx.context_attribute() if step.is_manual else expression_text(step.use.receiver)
        return f"{context}.engines[{expression_text(optimizer)}]"
    assert step.owner is not None  # else the engines were collected
    return ctx.plan.engine_names[step.owner]


def _problem(ctx: RuleContext, step: Step) -> tuple[str, str] | None:
    if step.is_manual:
        return _problem_by_hand(step)
    if has_star(step.call):
        return "step_optimizer's arguments are hidden behind * or **", "write the arguments out"
    zero = argument(step.call, 2, "auto_zero_grads")
    if zero is not None and not is_literal(zero.value, "True") and not _clears_first(ctx, step):
        return (
            "auto_zero_grads=False keeps gradients across steps, but a DeepSpeed engine always clears them",
            "drop auto_zero_grads=False if the trial clears the gradients itself before each backward",
        )
    if not isinstance(step.use.file.parent(step.call), cst.Expr):
        return "the value of step_optimizer is used", "call it as a separate statement"
    return None


def _problem_by_hand(step: Step) -> tuple[str, str] | None:
    scaled = step.optimizer is not getattr(step.call.func, "value", None)
    if len(step.call.args) > scaled:
        return "a closure optimizer cannot be stepped by an engine", "compute the loss and call backward before step()"
    if not isinstance(step.use.file.parent(step.call), cst.Expr):
        return "the value of optimizer.step() is used", "call it as a separate statement"
    if not _clears_gradients(step):
        return (
            "this optimizer is stepped without the context and its gradients are never cleared; an engine clears them",
            "call zero_grad() before the backward, or step through the context",
        )
    return None


def _clears_first(ctx: RuleContext, step: Step) -> bool:
    """Return whether the trial clears the optimizer's gradients itself whenever the method runs, before any backward in
    it: then nobody meets the gradients that a step leaves."""
    owner, file, function = step.owner, step.use.file, step.use.function
    if owner is None or function is None or ctx.plan.accumulation.is_used or handles_gradients(ctx.trial):
        return False
    backwards = [b.call for b in ctx.trial.backwards if b.use.function is function]
    return bool(backwards) and any(
        isinstance(node.func, cst.Attribute)
        and node.func.attr.value == "zero_grad"
        and dotted(node.func.value) in owner.names
        and runs_once(file, node, function)
        and file.position(node) < min(map(file.position, backwards))
        for node in file.nodes(cst.Call, below=function)
    )


def _clears_gradients(step: Step) -> bool:
    """Return whether the method that steps by hand also clears the gradients of that optimizer."""
    owner, function = step.owner, step.use.function
    if owner is None or function is None:
        return False
    names = owner.names | {name for model in owner.models for name in model.names}
    return any(
        isinstance(node, cst.Call)
        and isinstance(node.func, cst.Attribute)
        and node.func.attr.value == "zero_grad"
        and dotted(node.func.value) in names
        for node in walk(function)
    )


def _gated(ctx: RuleContext, step: Step) -> bool:
    if step.is_manual:
        return False
    return not ctx.plan.managed or keeps_function(ctx, step)


def _rewrite(ctx: RuleContext, step: Step) -> None:
    file = step.use.file
    averages = ctx.plan.averages_late and not step.is_manual
    if not _gated(ctx, step) and not averages:
        file.change(
            step.call,
            lambda updated: file.edits.expression(f"{_engine(ctx, step, _optimizer_in(step, updated))}.step()"),
        )
        return
    small = file.parent(step.call)
    assert isinstance(small, cst.Expr)
    file.expand(small, lambda updated: "\n".join(_lines(ctx, step, updated, averages)))


def _optimizer_in(step: Step, updated: cst.CSTNode) -> cst.BaseExpression:
    """Return the step's optimizer as the other rules left it."""
    assert isinstance(updated, cst.Call)
    at = [arg.value for arg in step.call.args]
    if step.optimizer in at:
        return updated.args[at.index(step.optimizer)].value
    assert isinstance(updated.func, cst.Attribute)
    return updated.func.value


def _lines(ctx: RuleContext, step: Step, updated: cst.CSTNode, averages: bool) -> list[str]:
    """Return the lines that replace ``context.step_optimizer(...)``."""
    assert isinstance(updated, cst.Expr) and isinstance(updated.value, cst.Call)
    optimizer, clip = _optimizer_in(step, updated.value), clip_in(step, updated.value)
    engine, context = _engine(ctx, step, optimizer), expression_text(step.use.receiver)
    body = [f"{context}.average_gradients({engine})"] if averages else []
    if clip is not None and keeps_function(ctx, step):
        body += kept_clip(ctx, step, engine, optimizer, clip)
    step_line = f"{engine}.step()"
    if ctx.target.ships_helpers:
        gate = f"if {context}.is_gradient_accumulation_boundary():"
        inside = body if ctx.plan.managed else [*body, step_line]
        return [gate, *(f"    {line}" for line in inside), *([step_line] if ctx.plan.managed else [])]
    if ctx.plan.managed:
        return [f"if {engine}.is_gradient_accumulation_boundary():", *(f"    {line}" for line in body), step_line]
    # without accumulation every micro-batch is a boundary; gradients of other engines' losses are reduced here
    reduce = [] if body else [f"{engine}.allreduce_gradients()"]
    return [*body, *reduce, step_line]
