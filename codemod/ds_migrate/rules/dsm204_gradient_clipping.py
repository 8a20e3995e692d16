"""``clip_grads`` becomes ``gradient_clipping``, or stays the trial's own function where a config cannot say it."""

from __future__ import annotations

from ds_migrate.conversion.rule_context import RuleContext
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import expression_text

CODE = Code.GRADIENT_CLIPPING


def apply(ctx: RuleContext) -> None:
    for step in ctx.trial.steps:
        if step.clip is None:
            continue
        clipping = ctx.plan.clipping.get(step.owner) if step.owner is not None else None
        if clipping is not None and clipping.max_norm is not None:
            norm = expression_text(clipping.max_norm)
            message = f"clipping to an L2 norm of {norm} is the engine's gradient_clipping"
        else:
            message = "this clipping has no config form: the function is kept and called between backward and step"
        ctx.converted(CODE, step.use.file, step.clip, message)
