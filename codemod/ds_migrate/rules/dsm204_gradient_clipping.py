"""``clip_grads`` becomes ``gradient_clipping``, or stays the trial's own function where a config cannot say it.

What it does
    An L2 ``clip_grad_norm_`` with a norm known when the engine is made becomes the engine's ``gradient_clipping``. Any
    other function (value clipping, other norms, a condition, logging) is called where it was called: after the
    backward, before the step, on reduced gradients.

Why
    DeepSpeed clips inside ``engine.step()``. Its default became 1.0 in 0.19.3, so a trial that never clipped gets an
    explicit 0.0.

Before
    def train_batch(self, batch: TorchData, epoch_idx: int, batch_idx: int) -> Dict[str, Any]:
        inputs, targets = batch
        loss = self.criterion(self.model(inputs), targets)
        self.context.backward(loss)
        self.context.step_optimizer(
            self.optimizer, clip_grads=lambda params: torch.nn.utils.clip_grad_norm_(params, 0.5)
        )
        return {"loss": loss}

After
    def train_batch(self, dataloader_iter: Iterator[TorchData], epoch_idx: int, batch_idx: int) -> Dict[str, Any]:
        inputs, targets = self.context.to_device(next(dataloader_iter))
        loss = self.criterion(self.model(inputs), targets)
        self.model.backward(loss)
        self.model.step()
        return {"loss": loss}

Numbers
    Unchanged (measured equal in fp32).

References
    PyTorchTrialContext.step_optimizer(clip_grads=), DeepSpeed config gradient_clipping
"""

from __future__ import annotations

from ds_migrate.conversion.rule_context import RuleContext
from ds_migrate.rules.wrap_edits import expression_text

CODE = "DSM204"
NAME = "gradient-clipping"


def apply(ctx: RuleContext) -> None:
    for step in ctx.trial.steps:
        if step.clip is None:
            continue
        clipping = ctx.trial.clipping.get(step.owner) if step.owner is not None else None
        if clipping is not None and clipping.max_norm is not None:
            norm = expression_text(clipping.max_norm)
            message = f"clipping to an L2 norm of {norm} is the engine's gradient_clipping"
        else:
            message = "this clipping has no config form: the function is kept and called between backward and step"
        ctx.converted(CODE, step.use.file, step.clip, message)
