"""``--optimizer-in-config`` lets DeepSpeed make the optimizer, where it makes the same one."""

from __future__ import annotations

from ds_migrate.conversion.rule_context import RuleContext
from ds_migrate.rules.codes import Code

CODE = Code.OPTIMIZER_IN_CONFIG


def apply(ctx: RuleContext) -> None:
    asked, trial = ctx.trial.asked, ctx.trial
    if not ctx.options.optimizer_in_config or trial.place is None:
        return
    wraps = [wrap for optimizer in trial.optimizers for wrap in optimizer.wraps]
    file, node = (wraps[0].file, wraps[0].call) if wraps else (trial.place.file, trial.place.statement)
    if asked.optimizer is None:
        ctx.review(CODE, file, node, f"the optimizer stays in the trial: {asked.optimizer_stays}")
        return
    message = f"DeepSpeed makes torch.optim.{asked.optimizer.kind} from the config"
    if asked.optimizer.computed:
        message += f", to which the trial adds {', '.join(asked.optimizer.computed)} at run time"
    ctx.converted(CODE, file, node, message)
