"""Parts of both base classes: read the settings, build config, tokenizer and model, compute the loss."""

from __future__ import annotations

import logging
from typing import Any

import torch

from trial_runtime.model_hub import utils
from trial_runtime.model_hub.huggingface import _build, _kwargs

_logger = logging.getLogger(__name__)
_REQUIRED = ("use_apex_amp", "model_mode", "num_training_steps")


class TransformerParts:
    """Mixin of the base classes.

    A subclass may set ``hparams``, ``data_config`` or ``exp_config`` before it calls ``super().__init__``; others are
    taken from the context, as ``AttrDict``.
    """

    context: Any
    hparams: Any
    data_config: Any
    exp_config: Any
    model: Any

    def _build(self, context: Any) -> tuple[_kwargs.OptimizerKwargs, _kwargs.LRSchedulerKwargs]:
        """Set everything up to ``model``, and return the arguments of the optimizer and its schedule."""
        self.context = context
        if not hasattr(self, "hparams"):
            self.hparams = utils.AttrDict(context.get_hparams())
        if not hasattr(self, "data_config"):
            self.data_config = utils.AttrDict(context.get_data_config())
        if not hasattr(self, "exp_config"):
            self.exp_config = utils.AttrDict(self._experiment_config())
        self.check_hparams()
        parsed = _kwargs.default_parse_config_tokenizer_model_kwargs(self.hparams)
        self.config_kwargs, self.tokenizer_kwargs, self.model_kwargs = parsed
        optimizer_and_scheduler = _kwargs.default_parse_optimizer_lr_scheduler_kwargs(self.hparams)
        self.config, self.tokenizer, self.model = _build.build_using_auto(
            self.config_kwargs,
            self.tokenizer_kwargs,
            self.hparams.model_mode,
            self.model_kwargs,
            use_pretrained_weights=self.hparams.use_pretrained_weights,
        )
        return optimizer_and_scheduler

    def _experiment_config(self) -> dict[str, Any]:
        """Return the experiment config with the lengths that the trial was written for."""
        config: dict[str, Any] = self.context.get_experiment_config()
        return config

    def check_hparams(self) -> None:
        """Complete the hyperparameters: ``num_training_steps`` from the config, ``use_pretrained_weights`` as true.

        Raises:
            AssertionError: ``use_apex_amp`` or ``model_mode`` is missing.
        """
        if not isinstance(self.hparams, utils.AttrDict):
            self.hparams = utils.AttrDict(self.hparams)
        if "num_training_steps" not in self.hparams:
            self.hparams.num_training_steps = utils.compute_num_training_steps(
                self._experiment_config(), self.context.get_global_batch_size()
            )
        if "use_pretrained_weights" not in self.hparams:
            _logger.warning(
                "the model starts from pretrained weights; set the hyperparameter use_pretrained_weights to false to "
                "train it from scratch"
            )
            self.hparams.use_pretrained_weights = True
        for name in _REQUIRED:
            assert name in self.hparams, f"{name} is a required hyperparameter of BaseTransformerTrial"

    def _loss(self, batch: Any) -> torch.Tensor:
        """Return the model's loss on a batch, a dict of the arguments of its ``forward``."""
        outputs = self.model(**batch)
        loss: torch.Tensor = outputs["loss"] if isinstance(outputs, dict) else outputs[0]
        return loss
