"""Block every use of the context that DeepSpeedTrialContext lacks and no rule converts."""

from __future__ import annotations

import libcst as cst

from ds_migrate.conversion.rule_context import RuleContext
from ds_migrate.rules.codes import Code
from ds_migrate.rules.feature_tests import fold_attribute_test, fold_comparison
from ds_migrate.syntax.nodes import code
from ds_migrate.syntax.one_line import expression_text
from ds_migrate.trial.context import ContextUse
from ds_migrate.trial.stand_ins import made_with_stand_in

CODE = Code.CONTEXT_API

# Distinctive enough to be the context's wherever they stand, also in helper classes and callbacks.
DISTINCTIVE = frozenset(
    [
        "wrap_model",
        "wrap_optimizer",
        "wrap_lr_scheduler",
        "wrap_scaler",
        "step_optimizer",
        "configure_apex_amp",
        "autocast_forward_pass",
        "backward",
        "models",
        "optimizers",
        "lr_schedulers",
        "_aggregation_frequency",
    ]
)
# What the loop calls once the trial, and with it the engines, is there.
_WITH_ENGINES = ("train_batch", "evaluate_batch", "evaluate_full_dataset", "build_callbacks")
# What counts batches of the loader in a PyTorchTrial, and optimizer steps in a DeepSpeedTrial, with a way out.
_COUNTING = {
    "current_train_batch": "multiply it by the accumulation steps if the count matters",
    "current_train_epoch": "in train_batch, take epoch_idx, which is that of the micro-batch",
    "get_initial_batch": "multiply it by the accumulation steps if the count matters",
    "is_epoch_start": "it holds for each micro-batch of the first step: compare with the latest epoch_idx instead",
    "is_epoch_end": "it holds for each micro-batch of the last step: take is_gradient_accumulation_boundary() along",
}
_WAYS = {
    "wrap_scaler": 'drop the scaler; precision is a matter of ds_config.json ("fp16", "bf16" or "torch_autocast")',
    "configure_apex_amp": 'drop apex; precision is a matter of ds_config.json ("fp16" or "bf16")',
    "autocast_forward_pass": "use torch.autocast in the forward pass",
    "_aggregation_frequency": "call context.get_num_micro_batches_per_slot() once the engines are made",
    "experimental.use_amp": 'drop it; precision is a matter of ds_config.json ("torch_autocast" is the nearest)',
    "models": "name the models: self.model instead of self.context.models[0]",
    "optimizers": "name the optimizers: self.optimizer instead of self.context.optimizers[0]",
    "lr_schedulers": "name the schedulers: self.scheduler instead of self.context.lr_schedulers[0]",
}


def apply(ctx: RuleContext) -> None:
    tested = set()
    for file, context_names in ctx.context_names.items():
        for test in context_names.attribute_tests():
            if fold_attribute_test(ctx, file, test):
                tested.add(test.call)
            elif test.is_experimental or (test.name not in (None, "wrap_lr_scheduler") and is_lost(test.name or "")):
                ctx.blocked(
                    CODE, file, test.call,
                    f"the code tests whether its context has {code(test.call.args[1].value)}, and the result changes",
                    "decide without a test of the context",
                )  # fmt: skip
    for use in ctx.trial.uses:
        around = next((a for a in use.file.ancestors(use.node) if isinstance(a, cst.Call)), None)
        if around in tested or (use.attr in DISTINCTIVE and fold_comparison(ctx, use)):
            ctx.handle(use)
        _lengths(ctx, use)
        _indices(ctx, use)
    for file, call, stand_in in made_with_stand_in(ctx.trial):
        ctx.review(
            CODE, file, call,
            f"{ctx.trial.name} is constructed with {stand_in} in place of a context, which has no engines",
            "construct it with the context of trial_runtime.pytorch.deepspeed.init(hparams=...)",
        )  # fmt: skip
    _report_unused(ctx)
    inside = {part.node for part in ctx.trial.parts}
    for use in ctx.trial.uses:
        if use.node in ctx.handled or not is_lost(use.attr):
            continue
        if use.owner not in inside and use.attr not in DISTINCTIVE and not use.attr.startswith("experimental."):
            continue
        ctx.blocked(
            CODE,
            use.file,
            use.node,
            _message(use),
            _way(use),
        )


def _report_unused(ctx: RuleContext) -> None:
    """Report each class and function that stays as it is because nothing names it, once."""
    for node, use in ctx.trial.unused_definitions.items():
        if use.file.edits.once(node, CODE):
            ctx.review(
                CODE, use.file, node.name,
                f"nothing in the files of {ctx.trial.name} uses {node.name.value}, which calls {use.attr}() of its "
                "context: it stays as it is, and no DeepSpeedTrialContext has that",
            )  # fmt: skip


def is_lost(attr: str) -> bool:
    """Return whether PyTorchTrialContext has the attribute and DeepSpeedTrialContext lacks it; what both lack stays."""
    own = attr.startswith("_") and attr != "_epoch_len"
    return own or attr in DISTINCTIVE or attr.split(".")[0] == "experimental"


def _lengths(ctx: RuleContext, use: ContextUse) -> None:
    """Convert or report the length of an epoch and the number of micro-batches of a step."""
    if use.attr == "_epoch_len" and ctx.plan.accumulation.is_used:
        ctx.review(
            CODE, use.file, use.node, "with accumulation _epoch_len is in optimizer steps now, it was in micro-batches",
            "multiply it by the accumulation steps if the count matters",
        )  # fmt: skip
    if use.attr == "_aggregation_frequency" and use.function and use.function.name.value in _WITH_ENGINES:
        ctx.handle(use)
        use.file.replace(use.node, f"{expression_text(use.receiver)}.get_num_micro_batches_per_slot()")
        ctx.converted(CODE, use.file, use.node, "the engine knows the accumulation steps")


def _indices(ctx: RuleContext, use: ContextUse) -> None:
    """Convert or report what the context knows about where training is, with accumulation."""
    if not ctx.plan.accumulation.is_used or use.attr not in _COUNTING or not use.file.edits.once(use.node, CODE):
        return
    if use.attr == "current_train_batch" and ctx.target.ships_helpers:
        use.file.replace(use.node, f"{expression_text(use.receiver)}.get_micro_batch_idx")
        ctx.converted(CODE, use.file, use.node, "the index counts micro-batches, as it did")
    else:
        ctx.review(
            CODE, use.file, use.node, f"with accumulation {use.attr}() is about optimizer steps now, it was about "
            "micro-batches",
            _COUNTING[use.attr],
        )  # fmt: skip


def _way(use: ContextUse) -> str:
    if use.call is None and use.attr in ("backward", "step_optimizer", "wrap_model", "wrap_optimizer"):
        return f"call it where it is needed: {code(use.node)}(...)"
    return _WAYS.get(use.attr, "remove the use, or do it without the context")


def _message(use: ContextUse) -> str:
    where = "" if use.call is not None or use.attr not in DISTINCTIVE else " (it is not called here)"
    return f"DeepSpeedTrialContext has no {use.attr}{where}"
