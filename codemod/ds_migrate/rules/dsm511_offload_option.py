"""Apply ``--offload``: move training state to host memory."""

from __future__ import annotations

from ds_migrate.conversion.rule_context import RuleContext
from ds_migrate.decisions.engine_layout import Form
from ds_migrate.decisions.engine_plan import EnginePlan
from ds_migrate.rules.codes import Code

CODE = Code.OFFLOAD_OPTION

_SAID = {
    "optimizer": "optimizer state lives in host memory and is stepped there, which is slower",
    "parameters": "parameters and optimizer state live in host memory, which is slower",
}


def apply(ctx: RuleContext) -> None:
    options, location = ctx.plan.options, ctx.plan.location
    if options.offload == "none":
        return
    if options.offload_refused:
        ctx.blocked(
            CODE, location.file, location.statement,
            f"--offload {options.offload} is not possible: {options.offload_refused}",
            "add --zero 3, or leave out --offload" if needs_stage(ctx.plan) else "leave out --offload",
        )  # fmt: skip
        return
    ctx.review(CODE, location.file, location.statement, f"--offload {options.offload}: {_SAID[options.offload]}")


def needs_stage(plan: EnginePlan) -> bool:
    """Return whether another ZeRO stage is all that is missing."""
    return plan.form is Form.SIMPLE and plan.options.offload == "parameters" and plan.zero.stage > 0
