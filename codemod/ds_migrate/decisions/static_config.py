"""The content of ``ds_config.json``: what of a trial's DeepSpeed config is known before it runs."""

from __future__ import annotations

from ds_migrate.decisions.engine_plan import Blocked, EnginePlan
from ds_migrate.decisions.gradient_clipping import shared_literal
from ds_migrate.targets import Target


def static_config(decision: EnginePlan | Blocked, target: Target) -> dict[str, object]:
    """Return the keys of the config that are the same in every run (for a blocked trial, those of any engine)."""
    if isinstance(decision, Blocked):
        return {"gradient_clipping": 0.0, "zero_optimization": {"stage": 0}}
    plan = decision
    optimizers = plan.trial.optimizers
    config: dict[str, object] = {
        "gradient_clipping": float(shared_literal(plan.clipping, optimizers) or 0.0),
        "zero_optimization": {"stage": plan.zero.stage, **plan.options.zero_config()},
        **plan.options.config(),
    }
    norms = [plan.clipping[owner] for owner in optimizers if owner in plan.clipping]
    if len(norms) == len(optimizers) > 0 and all(c.max_norm is not None and c.literal is None for c in norms):
        del config["gradient_clipping"]  # the trial's own code gives every engine its norm
    if plan.zero.stage > 0 and not plan.zero.has_tested_optimizer:
        config["zero_allow_untested_optimizer"] = True
    if not plan.managed and target.ships_helpers:
        config["managed_gradient_accumulation"] = False
    return config
