"""Apply ``--optimizer-in-config``: let DeepSpeed make the optimizer, where it makes the same one."""

from __future__ import annotations

from ds_migrate.conversion.rule_context import RuleContext
from ds_migrate.rules.codes import Code

CODE = Code.OPTIMIZER_IN_CONFIG


def apply(ctx: RuleContext) -> None:
    options, location = ctx.plan.options, ctx.plan.location
    if not ctx.options.optimizer_in_config:
        return
    wraps = [wrap for optimizer in ctx.trial.optimizers for wrap in optimizer.wraps]
    file, node = (wraps[0].file, wraps[0].call) if wraps else (location.file, location.statement)
    if options.optimizer is None:
        ctx.review(CODE, file, node, f"the optimizer stays in the trial: {options.optimizer_refused}")
        return
    message = f"DeepSpeed makes torch.optim.{options.optimizer.kind} from the config"
    if options.optimizer.computed:
        message += f", to which the trial adds {', '.join(options.optimizer.computed)} at run time"
    ctx.converted(CODE, file, node, message)
