"""Keep ``wrap_lr_scheduler``: the runtime steps and saves the schedule as PyTorchTrial did."""

from __future__ import annotations

from collections.abc import Callable

import libcst as cst

from ds_migrate.conversion.rule_context import RuleContext
from ds_migrate.rules.codes import Code
from ds_migrate.rules.generated_helpers import register_callbacks, schedule_callback
from ds_migrate.rules.wrap_edits import argument_alone, unwrap
from ds_migrate.syntax.nodes import argument, dotted, last_name, number
from ds_migrate.trial.batch import first_statement
from ds_migrate.trial.model import Wrap

CODE = Code.WRAP_LR_SCHEDULER


def apply(ctx: RuleContext) -> None:
    callbacks: list[str] = []
    for use in ctx.trial.uses_of("wrap_lr_scheduler"):
        if use.node.attr.value != use.attr and use.file.edits.once(use.node, CODE):  # its name in Determined 0.12
            use.file.replace(use.node.attr, use.attr)
    inside = {part.node for part in ctx.trial.parts}
    for use in ctx.trial.uses_of("wrap_lr_scheduler"):
        if use.owner not in inside and use.call is not None and ctx.target.ships_helpers:
            ctx.handle(use)
            ctx.converted(CODE, use.file, use.call, "the schedule stays as it is, the runtime steps and saves it")
    for wrap in ctx.trial.schedulers:
        ctx.handle(wrap.use)
        if ctx.target.ships_helpers:
            ctx.converted(CODE, wrap.file, wrap.call, "the schedule stays as it is, the runtime steps and saves it")
        else:
            _for_determined(ctx, wrap, callbacks)
    if callbacks:
        location = ctx.plan.location
        rows = "".join(f"    {callback},\n" for callback in callbacks)
        location.file.after(location.statement, f"self.lr_schedules = {{\n{rows}}}")
        register_callbacks(ctx, "lr_schedules")


def _for_determined(ctx: RuleContext, wrap: Wrap, callbacks: list[str]) -> None:
    """Give the engine the scheduler where that is exact, else write a callback with state."""
    mode = argument(wrap.call, 1, "step_mode")
    frequency = argument(wrap.call, 2, "frequency")
    every = 1 if frequency is None else number(frequency.value)
    name = last_name(mode.value) if mode is not None else ""
    per_step = name in ("STEP_EVERY_BATCH", "STEP_EVERY_OPTIMIZER_STEP")
    engine = per_step and every == 1 and len(ctx.trial.schedulers) == 1 and ctx.plan.managed
    callback = name == "MANUAL_STEP" or (name and isinstance(every, int))
    if (wrap.target is None and not wrap.is_discarded) or not (engine or callback) or ctx.plan.accumulation.is_used:
        ctx.blocked(
            CODE, wrap.file, wrap.call,
            f"Determined's DeepSpeedTrial cannot step this schedule as it was ({name or 'unknown mode'})",
            "convert for the bundled runtime (--target runtime)",
        )  # fmt: skip
        return
    target = wrap.target or ""
    if wrap.is_discarded and "." not in (dotted(wrap.argument) or "(."):
        target = dotted(wrap.argument) or ""
    if wrap.is_discarded and dotted(wrap.argument) is None:
        target = f"self.{wrap.file.names.fresh('lr_scheduler', 'ds_lr_scheduler')}"
        wrap.file.change(wrap.call, argument_alone(0))
        wrap.file.change(wrap.file.parent(wrap.call), _assigned_to(target))  # type: ignore[arg-type]
    else:
        unwrap(wrap, CODE)
    if engine:
        ctx.engine_scheduler = target
        ctx.converted(CODE, wrap.file, wrap.call, "the engine steps the schedule once an optimizer step")
        return
    name_of_class = schedule_callback(ctx, ctx.plan.location.file)
    period = "" if name == "MANUAL_STEP" else f", every_{'batches' if per_step else 'epochs'}={every}"
    if per_step:
        _before_batches(ctx, len(callbacks))
    callbacks.append(f'"lr_schedule_{len(callbacks)}": {name_of_class}({target}{period})')
    ctx.converted(CODE, wrap.file, wrap.call, "a callback steps and saves the schedule")


def _before_batches(ctx: RuleContext, index: int) -> None:
    """Step before the next batch where a step was due after a batch, so that reported values do not change."""
    for part, function in ctx.trial.methods("train_batch"):
        statement, after = first_statement(function)
        assert isinstance(statement, cst.BaseStatement)
        line = f'self.lr_schedules["lr_schedule_{index}"].before_batch()'
        if after:
            part.file.after(statement, line)
        else:
            part.file.before(statement, line, above_comments=True)
        return


def _assigned_to(target: str) -> Callable[[cst.CSTNode], cst.CSTNode]:
    def change(updated: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(updated, cst.Expr)
        return cst.Assign(
            [cst.AssignTarget(cst.ensure_type(cst.parse_expression(target), cst.Attribute))], updated.value
        )

    return change
