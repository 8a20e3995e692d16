"""Apply ``--precision``: the number format that the engine computes in."""

from __future__ import annotations

from ds_migrate.conversion.rule_context import RuleContext
from ds_migrate.rules.codes import Code

CODE = Code.PRECISION_OPTION

_EFFECT = {
    "fp32": "the engine computes in float32",
    "bf16": "weights, activations and gradients are bfloat16 now; the optimizer keeps a float32 copy of the weights",
    "fp16": "weights, activations and gradients are float16 now, the loss is scaled and steps that overflow are "
    "skipped; the optimizer keeps a float32 copy of the weights. It needs a GPU",
    "autocast": "the engine's forward computes in bfloat16 where torch's autocast does; weights stay float32",
}


def apply(ctx: RuleContext) -> None:
    options, location = ctx.plan.options, ctx.plan.location
    if options.precision is None:
        return
    if options.precision_refused:
        ctx.blocked(
            CODE, location.file, location.statement,
            f"--precision {options.precision} is not possible: {options.precision_refused}",
            "leave out --precision and put torch.autocast around the trial's forward passes, or remove that",
        )  # fmt: skip
        return
    ctx.review(
        CODE, location.file, location.statement, f"--precision {options.precision}: {_EFFECT[options.precision]}"
    )
