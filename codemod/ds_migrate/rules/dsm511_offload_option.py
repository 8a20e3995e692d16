"""``--offload`` moves training state to host memory.

What it does
    ``optimizer`` puts ``offload_optimizer`` into ``ds_config.json`` (ZeRO stages 1 to 3), ``parameters`` also
    ``offload_param`` (stage 3), both to the host's memory. The trial's own optimizer is kept, which DeepSpeed wants to
    be told: ``"zero_force_ds_cpu_optimizer": false``.

    Blocked at a stage that cannot offload, and where there is an engine for each optimizer.

Why
    A model that does not fit trains all the same, slower: states travel over the bus, and the optimizer steps on the
    host's processors. DeepSpeed's own CPU Adam is faster there; it needs a compiler and rounds otherwise.

After
    {
      "gradient_clipping": 0.0,
      "zero_optimization": {
        "stage": 1,
        "offload_optimizer": {
          "device": "cpu"
        }
      },
      "zero_force_ds_cpu_optimizer": false
    }

Numbers
    Unchanged in fp32: <= 1e-6 on 1 and 2 ranks, stages 1 to 3.

References
    DeepSpeed config zero_optimization.offload_optimizer, offload_param, zero_force_ds_cpu_optimizer
"""

from __future__ import annotations

from ds_migrate.conversion.rule_context import RuleContext
from ds_migrate.trial.model import Form, Trial

CODE = "DSM511"
NAME = "offload-option"

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
