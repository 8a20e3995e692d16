"""``zero_grad()`` around the step goes where the engine clears gradients itself.

What it does
    Drops ``optimizer.zero_grad()`` and ``model.zero_grad()`` from ``train_batch`` where one engine counts the
    accumulation: before the backward and after the step. With several engines, or between backward and step, the call
    stays as it is: it acts on the same gradients as before.

Why
    ``engine.step()`` clears the gradients after the optimizer has moved. Clearing them on every micro-batch would throw
    accumulated gradients away.

Before
    def train_batch(self, batch: TorchData, epoch_idx: int, batch_idx: int) -> Dict[str, Any]:
        inputs, targets = batch
        self.optimizer.zero_grad()  # start afresh
        loss = self.criterion(self.model(inputs), targets)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

After
    def train_batch(self, dataloader_iter: Iterator[TorchData], epoch_idx: int, batch_idx: int) -> Dict[str, Any]:
        inputs, targets = self.context.to_device(next(dataloader_iter))
        # start afresh
        loss = self.criterion(self.model(inputs), targets)
        self.model.backward(loss)
        self.model.step()
        return {"loss": loss}

Numbers
    Unchanged without accumulation. With it, gradients now add up over the micro-batches, as accumulation means.

References
    DeepSpeedEngine.step
"""

from __future__ import annotations

import libcst as cst

from ds_migrate.conversion.rule_context import RuleContext
from ds_migrate.rules.wrap_edits import remove_statement
from ds_migrate.syntax.nodes import dotted

CODE = "DSM303"
NAME = "zero-grad"


def apply(ctx: RuleContext) -> None:
    trial = ctx.trial
    if not trial.managed or len(trial.backwards) != 1 or len(trial.steps) != 1:
        return
    backward, step = trial.backwards[0], trial.steps[0]
    file, function = backward.use.file, backward.use.function
    if function is None:
        return
    names = {n for m in trial.models for n in m.names} | {n for o in trial.optimizers for n in o.names}
    lasting = {n for n in names if n.startswith("self.")}
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
                "take the call out: nothing would be learned",
            )
            continue
        if not file.edits.once(node, CODE):
            continue
        if not remove_statement(file, node):
            ctx.blocked(CODE, file, node, "the value of zero_grad() is used", "call it as a statement of its own")
            continue
        if ctx.accumulates:
            ctx.review(
                CODE, file, node,
                "the gradients were cleared on every micro-batch, so that only the last one counted; now they add up",
            )  # fmt: skip
        else:
            ctx.converted(CODE, file, node, "engine.step() clears the gradients")
