"""Let a trial that accumulates read the lengths that its config had: the conversion divides them."""

from __future__ import annotations

import libcst as cst

from ds_migrate.conversion.rule_context import RuleContext
from ds_migrate.rules.codes import Code

CODE = Code.CONFIG_LENGTHS

_READ = "get_experiment_config"


def apply(ctx: RuleContext) -> None:
    if not ctx.plan.accumulation.is_used:
        return
    for names in ctx.context_names.values():
        for use in names.uses:
            if use.attr != _READ:
                continue
            file = use.file
            if use.call is not None and not use.call.args and ctx.target.ships_helpers:
                if file.edits.once(use.call, CODE):
                    file.change(use.call, _in_micro_batches)
                ctx.converted(CODE, file, use.call, "the config's lengths are read in micro-batches, as they were")
            else:
                ctx.review(
                    CODE, file, use.node, "lengths in batches of the experiment config are divided by the accumulation "
                    "steps",
                    "multiply what is read of max_length, periods and profiling by the accumulation steps",
                )  # fmt: skip
    for file in ctx.trial.files:
        for node in file.nodes(cst.SimpleString):
            if node.evaluated_value == "scheduling_unit":
                ctx.review(
                    CODE, file, node, "scheduling_unit is divided by the accumulation steps where the config gives it",
                    "multiply it by the accumulation steps, unless it is the default of 100",
                )  # fmt: skip


def _in_micro_batches(updated: cst.CSTNode) -> cst.CSTNode:
    assert isinstance(updated, cst.Call)
    equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    return updated.with_changes(args=[cst.Arg(cst.Name("True"), keyword=cst.Name("in_micro_batches"), equal=equal)])
