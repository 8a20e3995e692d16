"""Models, optimizers and learning rate schedules, made from their arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import is_dataclass
from typing import Any

import torch

from trial_runtime.model_hub.huggingface import _packages
from trial_runtime.model_hub.huggingface._adamw import AdamW
from trial_runtime.model_hub.huggingface._kwargs import LRSchedulerKwargs, OptimizerKwargs

# The class of transformers for each ``model_mode``.
MODEL_MODES = {
    "base": "AutoModel",
    "pretraining": "AutoModelForPreTraining",
    "causal-lm": "AutoModelForCausalLM",
    "masked-lm": "AutoModelForMaskedLM",
    "seq2seq-lm": "AutoModelForSeq2SeqLM",
    "sequence-classification": "AutoModelForSequenceClassification",
    "multiple-choice": "AutoModelForMultipleChoice",
    "next-sentence": "AutoModelForNextSentencePrediction",
    "token-classification": "AutoModelForTokenClassification",
    "question-answering": "AutoModelForQuestionAnswering",
}
_NO_DECAY = ("bias", "LayerNorm.weight")


def build_using_auto(
    config_kwargs: Any,
    tokenizer_kwargs: Any,
    model_mode: str,
    model_kwargs: Any,
    use_pretrained_weights: bool = True,
) -> tuple[Any, Any, Any]:
    """Return config, tokenizer and model, made by the Auto classes of transformers. Weights are float32.

    Args:
        config_kwargs: arguments of ``AutoConfig.from_pretrained``, a dict or ``ConfigKwargs``; likewise the others.
        tokenizer_kwargs: arguments of ``AutoTokenizer.from_pretrained``.
        model_mode: a key of ``MODEL_MODES``.
        model_kwargs: arguments of the model's ``from_pretrained``.
        use_pretrained_weights: load the model's weights; False draws them anew, ``model_kwargs`` then have no use.

    Raises:
        ValueError: there is no such ``model_mode``.
        ImportError: transformers is not installed.
    """
    if model_mode not in MODEL_MODES:
        raise ValueError(f"there is no model_mode {model_mode!r}; there are {', '.join(MODEL_MODES)}")
    transformers = _packages.transformers()
    config = transformers.AutoConfig.from_pretrained(**_arguments(config_kwargs))
    tokenizer = transformers.AutoTokenizer.from_pretrained(**_arguments(tokenizer_kwargs))
    kind = getattr(transformers, MODEL_MODES[model_mode])
    # Version 5 takes the data type of the checkpoint where none is given, earlier ones float32.
    dtype = {"dtype": torch.float32} if int(transformers.__version__.split(".")[0]) >= 5 else {}
    if use_pretrained_weights:
        return config, tokenizer, kind.from_pretrained(**{**dtype, **_arguments(model_kwargs), "config": config})
    return config, tokenizer, kind.from_config(config, **dtype)


def _arguments(kwargs: Any) -> dict[str, Any]:
    """Return keyword arguments as current versions call them: ``token`` was ``use_auth_token``."""
    found = kwargs.as_dict() if is_dataclass(kwargs) and hasattr(kwargs, "as_dict") else dict(kwargs)
    token = found.pop("use_auth_token", None)
    if token:
        found["token"] = token
    return found


def group_parameters_for_optimizer(
    model: torch.nn.Module, weight_decay: float | None = 0, no_decay: tuple[str, ...] = _NO_DECAY
) -> list[dict[str, Any]]:
    """Return two parameter groups: weights that decay, and those with a part of ``no_decay`` in their names."""
    decaying: list[torch.nn.Parameter] = []
    constant: list[torch.nn.Parameter] = []
    for name, parameter in model.named_parameters():
        (constant if any(part in name for part in no_decay) else decaying).append(parameter)
    return [{"params": decaying, "weight_decay": weight_decay}, {"params": constant, "weight_decay": 0.0}]


def build_default_optimizer(model: torch.nn.Module, optimizer_kwargs: OptimizerKwargs) -> torch.optim.Optimizer:
    """Return AdamW or Adafactor over all parameters of a model; biases and layer norms do not decay."""
    groups = group_parameters_for_optimizer(model, optimizer_kwargs.weight_decay)
    if optimizer_kwargs.adafactor:
        adafactor: torch.optim.Optimizer = _packages.transformers().Adafactor(
            groups,
            lr=optimizer_kwargs.learning_rate,
            scale_parameter=optimizer_kwargs.scale_parameter,
            relative_step=optimizer_kwargs.relative_step,
        )
        return adafactor
    return AdamW(
        groups,
        lr=optimizer_kwargs.learning_rate,
        betas=(optimizer_kwargs.adam_beta1, optimizer_kwargs.adam_beta2),
        eps=optimizer_kwargs.adam_epsilon,
    )


def build_default_lr_scheduler(optimizer: torch.optim.Optimizer, scheduler_kwargs: LRSchedulerKwargs) -> Any:
    """Return the schedule of transformers that ``lr_scheduler_type`` names."""
    return _packages.transformers().get_scheduler(
        scheduler_kwargs.lr_scheduler_type,
        optimizer,
        num_warmup_steps=scheduler_kwargs.num_warmup_steps,
        num_training_steps=scheduler_kwargs.num_training_steps,
    )


def make_grad_clip_fn(max_grad_norm: float) -> Callable[[Iterable[torch.Tensor]], Any] | None:
    """Return a function that clips gradients to an L2 norm; None where the norm has no limit."""
    if max_grad_norm <= 0:
        return None
    return lambda parameters: torch.nn.utils.clip_grad_norm_(parameters, max_grad_norm)
