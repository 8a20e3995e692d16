"""``--offload`` moves training state to host memory."""

from __future__ import annotations

from ds_migrate.conversion.rule_context import RuleContext
from ds_migrate.rules.codes import Code
from ds_migrate.trial.model import Form, Trial

CODE = Code.OFFLOAD_OPTION

_SAID = {
    "optimizer": "optimizer state lives in host memory and is stepped there, which is slower",
    "parameters": "parameters and optimizer state live in host memory, which is slower",
}


def apply(ctx: RuleContext) -> None:
    asked, place = ctx.trial.asked, ctx.trial.place
    if place is None or asked.offload == "none":
        return
    if asked.offload_refused:
        ctx.blocked(
            CODE, place.file, place.statement, f"--offload {asked.offload} is not possible: {asked.offload_refused}",
            "add --zero 3, or leave --offload out" if needs_stage(ctx.trial) else "leave --offload out",
        )  # fmt: skip
        return
    ctx.review(CODE, place.file, place.statement, f"--offload {asked.offload}: {_SAID[asked.offload]}")


def needs_stage(trial: Trial) -> bool:
    """Whether another ZeRO stage is all that is missing."""
    return trial.form is Form.SIMPLE and trial.asked.offload == "parameters" and trial.stage > 0
