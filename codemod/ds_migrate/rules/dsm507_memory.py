"""Report the memory of training state, and what ZeRO stages, offload and precision would save."""

from __future__ import annotations

from collections.abc import Iterator

from ds_migrate.conversion.rule_context import RuleContext
from ds_migrate.decisions.config_optimizer import constructor
from ds_migrate.decisions.engine_layout import Form
from ds_migrate.decisions.zero_hazards import forward_past_engine
from ds_migrate.decisions.zero_stage import NOTHING_TO_SHARD
from ds_migrate.deepspeed_facts import Bytes, optimizer_states, training_state
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import argument, number
from ds_migrate.trial.model import Optimizer

CODE = Code.MEMORY
_RANKS = 8
_UNIT = f"GB of training state for each billion parameters, on each of {_RANKS} ranks"


def apply(ctx: RuleContext) -> None:
    location, options, stage = ctx.plan.location, ctx.plan.options, ctx.plan.zero.stage
    states = max((_states(optimizer) for optimizer in ctx.trial.optimizers), default=optimizer_states(""))
    chosen = training_state(stage, options.precision or "fp32", options.offload, states)
    before = training_state(0, "fp32", "none", states)
    sizes = {"in PyTorchTrial": before, "as converted": chosen}
    sizes |= {f"with {words}": size for words, size in _others(ctx, states) if size not in (before, chosen)}
    found = "; ".join(f"{size.shown(_RANKS)} {words}" for words, size in sizes.items())
    ctx.converted(CODE, location.file, location.statement, f"{_UNIT}: {found}")


def _others(ctx: RuleContext, states: int) -> Iterator[tuple[str, Bytes]]:
    """Yield what other options would make of it, as far as the trial can have them."""
    options, zero = ctx.plan.options, ctx.plan.zero
    precision, offload = options.precision or "fp32", options.offload
    if ctx.plan.form is not Form.SIMPLE or (zero.stage == 0 and zero.reason != NOTHING_TO_SHARD):
        return
    chosen = max(zero.stage, 1)
    through_engine = not forward_past_engine(ctx.trial)
    for stage in (2, 3) if through_engine else (2,):
        if stage > chosen:
            yield f"--zero {stage}", training_state(stage, precision, offload, states)
    if through_engine and ctx.target.ships_helpers:
        yield "--precision bf16", training_state(chosen, "bf16", offload, states)
    yield "--offload optimizer", training_state(chosen, precision, "optimizer", states)


def _states(optimizer: Optimizer) -> int:
    call = constructor(optimizer)
    module, _, kind = (optimizer.wraps[0].file.names.qualified(call.func) or "" if call else "").rpartition(".")
    if call is None or module != "torch.optim":
        return optimizer_states("")
    momentum = argument(call, 2, "momentum")
    return optimizer_states(kind, momentum is not None and number(momentum.value) != 0)
