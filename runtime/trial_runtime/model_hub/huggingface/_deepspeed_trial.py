"""The base class with a DeepSpeed engine."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trial_runtime import pytorch
from trial_runtime.model_hub.huggingface import _build
from trial_runtime.model_hub.huggingface._parts import TransformerParts
from trial_runtime.pytorch import deepspeed

_BESIDE = "ds_config.json"


class BaseTransformerDeepSpeedTrial(TransformerParts, deepspeed.DeepSpeedTrial):
    """DeepSpeedTrial over a model of transformers, with the numbers of ``BaseTransformerTrial``.

    Hyperparameters and attributes are those of ``BaseTransformerTrial``. The model is not wrapped: forward passes go
    through ``self.model``, backward passes and steps through the engine, ``self.context.engines[self.optimizer]``.
    The DeepSpeed config is the file that the hyperparameter ``deepspeed_config`` names, else ``ds_config.json`` beside
    the file of the subclass, else the default: ZeRO stage 0.

    Raises:
        ValueError: the DeepSpeed config shards (``grad_clip_fn`` would see a part of the gradients), clips or counts
            accumulation itself.
    """

    context: deepspeed.DeepSpeedTrialContext

    def __init__(self, context: deepspeed.DeepSpeedTrialContext) -> None:
        optimizer_kwargs, scheduler_kwargs = self._build(context)
        self.model = context.engines.add_model(self.model)
        self.optimizer = context.engines.add_optimizer(_build.build_default_optimizer(self.model, optimizer_kwargs))
        self.lr_scheduler = context.wrap_lr_scheduler(
            _build.build_default_lr_scheduler(self.optimizer, scheduler_kwargs),
            pytorch.LRScheduler.StepMode.STEP_EVERY_BATCH,
        )
        self.grad_clip_fn = _build.make_grad_clip_fn(optimizer_kwargs.max_grad_norm)
        uses_amp = context.device.type == "cuda" and bool(self.hparams.use_apex_amp)
        context.engines.initialize(self._deepspeed_config(uses_amp))
        deepspeed.autocast_forward(self.model, enabled=uses_amp)

    def train_batch(self, dataloader_iter: Iterator[Any] | None, epoch_idx: int, batch_idx: int) -> Any:  # noqa: ARG002
        """Return the loss of the next batch, after a step of the engine with it."""
        assert dataloader_iter is not None
        loss = self._loss(self.context.to_device(next(dataloader_iter)))
        self.context.engines.backward(loss)
        if self.context.is_gradient_accumulation_boundary():
            engine = self.context.engines[self.optimizer]
            engine.allreduce_gradients()
            if self.grad_clip_fn is not None:
                self.grad_clip_fn([p for group in self.optimizer.param_groups for p in group["params"]])
            engine.step()
        return loss

    def _experiment_config(self) -> dict[str, Any]:
        return self.context.get_experiment_config(in_micro_batches=True)

    def _deepspeed_config(self, uses_amp: bool) -> dict[str, Any]:
        hparams = self.context.get_hparams()
        beside = Path(inspect.getfile(type(self))).with_name(_BESIDE)
        base = hparams.get("deepspeed_config") or (beside if beside.is_file() else {})
        config = deepspeed.overwrite_deepspeed_config(
            {"gradient_clipping": 0.0, "managed_gradient_accumulation": False, "zero_optimization": {"stage": 0}},
            deepspeed.overwrite_deepspeed_config(base, {}),
        )
        entries: dict[str, Any] = {"train_micro_batch_size_per_gpu": self.context.get_per_slot_batch_size()}
        if uses_amp:
            entries["torch_autocast"] = {"enabled": True, "dtype": "float16"}
        config = deepspeed.overwrite_deepspeed_config(
            config, {**entries, **hparams.get("overwrite_deepspeed_args", {})}
        )
        _check(config, base)
        return config


def _check(config: dict[str, Any], source: Any) -> None:
    """Refuse what the engine would do besides, or instead of, the trial."""
    wrong = {
        "zero_optimization.stage": (config["zero_optimization"].get("stage", 0), 0),
        "managed_gradient_accumulation": (config["managed_gradient_accumulation"], False),
        "gradient_clipping": (config["gradient_clipping"], 0.0),  # the hyperparameter max_grad_norm sets it
    }
    for name, (value, needed) in wrong.items():
        if value != needed:
            raise ValueError(
                f"BaseTransformerDeepSpeedTrial needs {name}: {needed} in its DeepSpeed config, {source or 'it'} has "
                f"{value}; the trial itself clips to the hyperparameter max_grad_norm and steps"
            )
