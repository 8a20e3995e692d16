"""Number formats that exclude each other, or that the device does not have."""

from __future__ import annotations

from typing import Any

from trial_runtime.pytorch.deepspeed._config_lint.problems import (
    Problem,
    Problems,
    Setup,
    enabled,
    shown,
    stage_of,
    value_at,
)

_HALF = ("fp16", "bf16")


def check_precision(config: dict[str, Any], setup: Setup) -> Problems:
    """Check fp16, bf16, autocast and the data types of parameters and gradients."""
    half = [name for name in _HALF if enabled(config, name)]
    if not half and enabled(config, "bfloat16"):  # its old name
        half = ["bf16"]
    if len(half) == 2:
        yield Problem("fp16.enabled", "fp16 and bf16 are both on: write false in one of them")
    for name in half if len(half) == 1 else ():
        if not _supported(name):
            where = "this machine's accelerator does not have it"
            yield Problem(f"{name}.enabled", f"{where}: write false{_other(name)}", fatal=setup.here)
    if half and enabled(config, "torch_autocast"):
        yield Problem(
            "torch_autocast.enabled",
            f"{half[0]} is on too, which casts the whole model: one of them is enough",
            fatal=False,
        )
    yield from _dtypes(config, half)
    yield from _master_weights(config)


def _supported(name: str) -> bool:
    from deepspeed.accelerator import get_accelerator

    accelerator = get_accelerator()
    return bool(accelerator.is_fp16_supported() if name == "fp16" else accelerator.is_bf16_supported())


def _other(name: str) -> str:
    if name == "fp16" and _supported("bf16"):
        return ', and "bf16": {"enabled": true} for half precision'
    return ""


def _dtypes(config: dict[str, Any], half: list[str]) -> Problems:
    names = ", ".join(("fp32", "fp16", "bf16"))
    for path in (
        "communication_data_type",
        "seq_parallel_communication_data_type",
        "data_types.grad_accum_dtype",
        "data_types.param_dtype",
        "data_types.buffer_dtype",
        "torch_autocast.dtype",
    ):
        value = value_at(config, path)
        if value is not None and _dtype(value) is None:
            yield Problem(path, f"{shown(value)} is not a number format: write one of {names}")
    model = half[0] if half else "fp32"
    parameters = _dtype(value_at(config, "data_types.param_dtype", model))
    if len(half) < 2 and parameters not in (None, model):
        yield Problem(
            "data_types.param_dtype",
            f"{shown(parameters)}, but parameters are {model} here: leave it out"
            + (f', or write "{parameters}": {{"enabled": true}}' if parameters in _HALF else ""),
        )
    gradients = _dtype(value_at(config, "data_types.grad_accum_dtype", model))
    if stage_of(config) == 0 and len(half) < 2 and gradients not in (None, model):
        yield Problem(
            "data_types.grad_accum_dtype",
            f'{shown(gradients)} with {model} parameters needs ZeRO: write "zero_optimization": {{"stage": 1}}, '
            "or leave it out",
        )


def _dtype(value: Any) -> str | None:
    """Return ``fp32``, ``fp16`` or ``bf16`` for any way to write it; None for anything else."""
    from deepspeed.runtime.config import DtypeEnum

    try:
        return str(DtypeEnum(value).name)
    except (ValueError, KeyError, TypeError):
        return None


def _master_weights(config: dict[str, Any]) -> Problems:
    for path in (
        "fp16.fp16_master_weights_and_grads",
        "bf16.bf16_master_weights_and_grads",
        "bf16.bf16_optimizer_states",
    ):
        if value_at(config, path) and stage_of(config) == 0:
            yield Problem(path, 'needs ZeRO: write "zero_optimization": {"stage": 1} (or 2, 3), or false here')
    if value_at(config, "bf16.bf16_optimizer_states") and not value_at(config, "bf16.bf16_master_weights_and_grads"):
        yield Problem("bf16.bf16_optimizer_states", 'needs "bf16_master_weights_and_grads": true beside it')
