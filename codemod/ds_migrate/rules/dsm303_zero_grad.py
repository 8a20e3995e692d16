"""Remove ``zero_grad()`` around the step where the engine clears gradients itself."""

from __future__ import annotations

import libcst as cst

from ds_migrate.conversion.rule_context import RuleContext
from ds_migrate.rules.codes import Code
from ds_migrate.rules.wrap_edits import remove_statement
from ds_migrate.syntax.nodes import dotted

CODE = Code.ZERO_GRAD


def apply(ctx: RuleContext) -> None:
    trial = ctx.trial
    if not ctx.plan.managed or len(trial.backwards) != 1 or len(trial.steps) != 1:
        return
    backward, step = trial.backwards[0], trial.steps[0]
    file, function = backward.use.file, backward.use.function
    if function is None:
        return
    lasting = {n for n in trial.names if n.startswith("self.")}
    for node in file.nodes(cst.Call, below=function):
        if not isinstance(node.func, cst.Attribute) or node.func.attr.value != "zero_grad":
            continue
        if dotted(node.func.value) not in lasting:
            continue
        if file.position(backward.call) < file.position(node) < file.position(step.call):
            ctx.blocked(
                CODE,
                file,
                node,
                "gradients are cleared between backward and step",
                "remove the call: the model would learn nothing",
            )
            continue
        if not file.edits.once(node, CODE):
            continue
        if not remove_statement(file, node):
            ctx.blocked(CODE, file, node, "the value of zero_grad() is used", "call it as a separate statement")
            continue
        if ctx.plan.accumulation.is_used:
            ctx.review(
                CODE, file, node,
                "the gradients were cleared on every micro-batch, so that only the last one counted; now they add up",
            )  # fmt: skip
        else:
            ctx.converted(CODE, file, node, "engine.step() clears the gradients")
