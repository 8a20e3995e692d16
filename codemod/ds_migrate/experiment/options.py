"""The outcome for each setting of ``optimizations``."""

from __future__ import annotations

from ds_migrate.experiment.yaml_nodes import Node
from ds_migrate.findings import Severity
from ds_migrate.rules.codes import Code

FALSE = ("false", "no", "off")

# Horovod's tensor fusion has no effect on the numbers, and DeepSpeed sizes its own buckets.
_WITHOUT_EFFECT = (
    "auto_tune_tensor_fusion",
    "tensor_fusion_threshold",
    "tensor_fusion_cycle_time",
    "grad_updates_size_file",
)

Outcome = tuple[Code, Severity, str, str | None]  # code, severity, message, what replaces it


def option(name: str, value: Node, k: int, effective: bool) -> Outcome | None:
    """Return what to report about one setting that goes; None for an unknown one, which stays.

    ``k``: batches per optimizer step. ``effective``: whether Determined read ``optimizations`` for this config.
    """
    given = value.real.value
    on = given.lower() not in FALSE
    unread = "" if effective else "the script's own settings counted, not these: "
    if name == "aggregation_frequency":
        return _aggregation(k, effective, unread)
    if name == "average_aggregated_gradients":
        return _averaging(on, k, effective)
    if name == "mixed_precision":
        if given.upper() in ("O0", ""):
            return _gone("mixed_precision O0 is full precision, as without it")
        message = f"mixed_precision {given} is gone: no trial of this API read it; --precision chooses the engine's"
        return Code.REDUCED_PRECISION_OPTIONS, Severity.REVIEW, message, None
    if name == "gradient_compression":
        if not on:
            return _gone("gradient_compression false is what DeepSpeed does without it")
        message = 'was Horovod\'s; the nearest key of ds_config.json is "communication_data_type": "fp16"'
        return Code.REDUCED_PRECISION_OPTIONS, Severity.REVIEW, f"{unread}gradient_compression {message}", None
    if name == "average_training_metrics":
        if on:
            return _gone("training metrics are always averaged over the ranks")
        message = "training metrics are averaged over the ranks now, not those of rank 0"
        return Code.OPTIMIZATIONS, Severity.REVIEW, message, None
    if name in _WITHOUT_EFFECT:
        return _gone(f"{name} was Horovod's and does not change the numbers")
    return None


def _gone(message: str) -> Outcome:
    return Code.OPTIMIZATIONS, Severity.CONVERTED, message, None


def _aggregation(k: int, effective: bool, unread: str) -> Outcome:
    if not effective:
        return _gone(f"{unread}aggregation_frequency is removed")
    if k == 1:
        return _gone("aggregation_frequency 1 is what DeepSpeed does without it")
    fix = f"hyperparameters.overwrite_deepspeed_args.gradient_accumulation_steps: {k}"
    message = f"{k} batches make one optimizer step: DeepSpeed counts that step as one batch"
    return Code.GRADIENT_ACCUMULATION, Severity.CONVERTED, message, fix


def _averaging(on: bool, k: int, effective: bool) -> Outcome:
    if k == 1 or not effective:
        return (
            Code.AVERAGE_AGGREGATED_GRADIENTS,
            Severity.CONVERTED,
            "average_aggregated_gradients had no effect here",
            None,
        )
    if on:
        return (
            Code.AVERAGE_AGGREGATED_GRADIENTS,
            Severity.CONVERTED,
            "the engine averages over accumulated batches by itself",
            None,
        )
    message = "gradients are summed, not averaged, by scale_wrt_gas=False in the trial's source"
    return Code.AVERAGE_AGGREGATED_GRADIENTS, Severity.REVIEW, message, None
