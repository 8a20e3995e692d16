"""Replace ``wrap_optimizer(optimizer)`` by the optimizer, which its engine then takes."""

from __future__ import annotations

from ds_migrate.conversion.rule_context import RuleContext
from ds_migrate.decisions.engine_layout import Form
from ds_migrate.rules.codes import Code
from ds_migrate.rules.wrap_edits import collect, remove_small, unwrap
from ds_migrate.syntax.nodes import argument, is_literal, number
from ds_migrate.trial.foreign_parameters import has_bare_parameters

CODE = Code.WRAP_OPTIMIZER


def apply(ctx: RuleContext) -> None:
    for use in ctx.trial.helpers:
        given = argument(use.call, 0, "optimizer") if use.attr == "wrap_optimizer" and use.call is not None else None
        if given is not None:
            ctx.handle(use)
            collect(ctx, use, given.value, CODE, "add_optimizer")
    for optimizer in ctx.trial.optimizers:
        for wrap in optimizer.wraps:
            ctx.handle(wrap.use)
            file, call = wrap.file, wrap.call
            if ctx.plan.form is Form.COLLECTED:
                collect(ctx, wrap.use, wrap.argument, CODE, "add_optimizer")
            elif ctx.plan.options.optimizer is not None:
                for statement in ctx.plan.options.optimizer.assignments:  # DeepSpeed makes it (DSM512)
                    if file.edits.once(statement, CODE):
                        remove_small(file, statement)
            else:
                unwrap(wrap, CODE, bare=optimizer in ctx.plan.raw_names)
                ctx.converted(CODE, file, call, f"wrap_optimizer() removed: the engine takes {optimizer.target}")
            if ctx.plan.form is not Form.SIMPLE and has_bare_parameters(optimizer):
                ctx.review(
                    CODE, file, call,
                    f"{optimizer.target} owns parameters of no wrapped model: on several ranks their gradients are "
                    "averaged now, PyTorchTrial left each rank its own",
                )  # fmt: skip
            passes = argument(call, 1, "backward_passes_per_step")
            if passes is not None and number(passes.value) != 1:
                ctx.review(CODE, file, passes, "backward_passes_per_step is dropped: engines need no such count")
            compression = argument(call, 2, "fp16_compression")
            if (
                compression is not None
                and not is_literal(compression.value, "False")
                and not is_literal(compression.value, "None")
            ):
                ctx.review(
                    CODE, file, compression, "fp16_compression is dropped, gradients are exchanged in full precision",
                    'for the nearest thing, add "communication_data_type": "fp16" to ds_config.json',
                )  # fmt: skip
