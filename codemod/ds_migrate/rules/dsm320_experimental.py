"""Move what ``context.experimental`` held to the context, or remove it."""

from __future__ import annotations

from ds_migrate.conversion.rule_context import RuleContext
from ds_migrate.rules.codes import Code
from ds_migrate.rules.feature_tests import MOVED
from ds_migrate.rules.wrap_edits import remove_statement
from ds_migrate.syntax.one_line import expression_text
from ds_migrate.trial.control_flow import runs_once

CODE = Code.EXPERIMENTAL


def apply(ctx: RuleContext) -> None:
    for use in ctx.trial.uses:
        group, _, name = use.attr.partition(".")
        if group != "experimental":
            continue
        if name in MOVED:
            ctx.handle(use)
            if use.file.edits.once(use.node, CODE):
                use.file.replace(use.node.value, expression_text(use.receiver))
                ctx.converted(CODE, use.file, use.node, f"{name} is on the context itself")
        elif name == "disable_auto_to_device" and use.call is not None:
            ctx.handle(use)
            if not use.file.edits.once(use.node, CODE):
                continue
            if use.function is None or not runs_once(use.file, use.call, use.function):
                ctx.blocked(
                    CODE, use.file, use.node,
                    "cannot determine whether batches are moved to the device: that is decided when the trial runs",
                    "always call disable_auto_to_device(), and move batches with context.to_device",
                )  # fmt: skip
            elif remove_statement(use.file, use.call):
                ctx.converted(CODE, use.file, use.node, "batches are moved by the trial itself, as they were")
            else:
                ctx.blocked(
                    CODE, use.file, use.node, "the value of disable_auto_to_device() is used", "call it as a statement"
                )
