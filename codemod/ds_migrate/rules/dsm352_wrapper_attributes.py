"""Report where the wrapper of several ranks was met in place of the model: attributes set on it, children and names."""

from __future__ import annotations

from ds_migrate.conversion.rule_context import RuleContext
from ds_migrate.rules.codes import Code
from ds_migrate.trial.wrapper_attributes import attributes_on_wrapper
from ds_migrate.trial.wrapper_structure import children_of_wrapper, names_in_wrapper

CODE = Code.WRAPPER_ATTRIBUTES


def apply(ctx: RuleContext) -> None:
    for file, node, text in attributes_on_wrapper(ctx.trial):
        ctx.review(
            CODE, file, node,
            f"{text} is set on the model now: on several ranks DistributedDataParallel kept it, and the forward pass "
            "never saw it",
        )  # fmt: skip
    for file, node, text in children_of_wrapper(ctx.trial):
        ctx.review(
            CODE, file, node,
            f"{text} walks over the model's children now: on several ranks the only child was the model, in "
            "DistributedDataParallel",
        )  # fmt: skip
    for file, node, text in names_in_wrapper(ctx.trial):
        ctx.review(
            CODE, file, node,
            f"{text} is asked of names in the model now: on several ranks they began with `module.`, of "
            "DistributedDataParallel",
        )  # fmt: skip
