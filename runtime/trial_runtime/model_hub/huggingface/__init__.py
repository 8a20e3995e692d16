"""Trials over models of Hugging Face ``transformers`` (extra ``huggingface``).

``BaseTransformerTrial`` is a PyTorchTrial, as it was in ``model_hub``. ``BaseTransformerDeepSpeedTrial`` is the same
with a DeepSpeed engine: ``ds-migrate`` builds converted trials on it. Nothing here imports transformers or datasets
before it is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trial_runtime.model_hub.huggingface._build import (
    MODEL_MODES,
    build_default_lr_scheduler,
    build_default_optimizer,
    build_using_auto,
    group_parameters_for_optimizer,
)
from trial_runtime.model_hub.huggingface._datasets import default_load_dataset, remove_unused_columns
from trial_runtime.model_hub.huggingface._kwargs import (
    ConfigKwargs,
    DatasetKwargs,
    LRSchedulerKwargs,
    ModelKwargs,
    OptimizerKwargs,
    TokenizerKwargs,
    default_parse_config_tokenizer_model_kwargs,
    default_parse_optimizer_lr_scheduler_kwargs,
    parse_dict_to_dataclasses,
)
from trial_runtime.model_hub.huggingface._pytorch_trial import BaseTransformerTrial

if TYPE_CHECKING:
    from trial_runtime.model_hub.huggingface._deepspeed_trial import BaseTransformerDeepSpeedTrial

# The names of versions before 0.12.
default_parse_config_tokenizer_model_args = default_parse_config_tokenizer_model_kwargs
default_parse_optimizer_lr_scheduler_args = default_parse_optimizer_lr_scheduler_kwargs

__all__ = [
    "MODEL_MODES",
    "BaseTransformerDeepSpeedTrial",
    "BaseTransformerTrial",
    "ConfigKwargs",
    "DatasetKwargs",
    "LRSchedulerKwargs",
    "ModelKwargs",
    "OptimizerKwargs",
    "TokenizerKwargs",
    "build_default_lr_scheduler",
    "build_default_optimizer",
    "build_using_auto",
    "default_load_dataset",
    "default_parse_config_tokenizer_model_args",
    "default_parse_config_tokenizer_model_kwargs",
    "default_parse_optimizer_lr_scheduler_args",
    "default_parse_optimizer_lr_scheduler_kwargs",
    "group_parameters_for_optimizer",
    "parse_dict_to_dataclasses",
    "remove_unused_columns",
]


def __getattr__(name: str) -> Any:
    """Return the DeepSpeed trial: only whoever uses it imports DeepSpeed."""
    if name == "BaseTransformerDeepSpeedTrial":
        from trial_runtime.model_hub.huggingface._deepspeed_trial import BaseTransformerDeepSpeedTrial

        return BaseTransformerDeepSpeedTrial
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
