"""The base class as it was: a PyTorchTrial."""

from __future__ import annotations

from typing import Any

from trial_runtime import pytorch
from trial_runtime.model_hub.huggingface import _build
from trial_runtime.model_hub.huggingface._parts import TransformerParts


class PyTorchForm(TransformerParts):
    """Mixin that wraps and steps through a PyTorchTrialContext, that of ``determined`` itself included."""

    step_every_batch: Any = pytorch.LRScheduler.StepMode.STEP_EVERY_BATCH

    def __init__(self, context: Any) -> None:
        optimizer_kwargs, scheduler_kwargs = self._build(context)
        self.model = context.wrap_model(self.model)
        self.optimizer = context.wrap_optimizer(_build.build_default_optimizer(self.model, optimizer_kwargs))
        if self.hparams.use_apex_amp:
            self.model, self.optimizer = context.configure_apex_amp(models=self.model, optimizers=self.optimizer)
        self.lr_scheduler = context.wrap_lr_scheduler(
            _build.build_default_lr_scheduler(self.optimizer, scheduler_kwargs), self.step_every_batch
        )
        self.grad_clip_fn = _build.make_grad_clip_fn(optimizer_kwargs.max_grad_norm)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:  # noqa: ARG002
        """Return the loss of a batch, after a step of the optimizer with it."""
        loss = self._loss(batch)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer, self.grad_clip_fn)
        return loss


class BaseTransformerTrial(PyTorchForm, pytorch.PyTorchTrial):
    """PyTorchTrial over a model of transformers.

    Hyperparameters name the model (``pretrained_model_name_or_path``), its task (``model_mode``), the optimizer and its
    schedule (``OptimizerKwargs``, ``LRSchedulerKwargs``). A subclass writes ``build_training_data_loader``,
    ``build_validation_data_loader`` and ``evaluate_batch``; a batch is a dict of the arguments of the model's forward.

    Sets ``config``, ``tokenizer``, ``model``, ``optimizer``, ``lr_scheduler`` and ``grad_clip_fn`` (None: gradients are
    not clipped).
    """
