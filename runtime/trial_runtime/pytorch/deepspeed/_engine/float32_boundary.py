"""Engines that compute in half precision, for code around them that computes in float32."""

from __future__ import annotations

from typing import Any

import torch

_HALF = (torch.float16, torch.bfloat16)


def float32_outside(engine: Any) -> Any:
    """Let the code around an engine see float32 only, whatever the engine computes in.

    Where the DeepSpeed config has ``bf16`` or ``fp16`` on, floating-point tensors that the model is called with are
    cast to that type, which DeepSpeed leaves to the caller. Half-precision tensors in what it returns
    (``torch_autocast`` makes such too) come back as float32, so that losses and metrics are computed as before. Tensors
    are looked for in tuples, lists and dicts.

    Args:
        engine: from ``deepspeed.initialize``; hooks are added to its module. In full precision nothing is cast.

    Returns:
        the engine.
    """
    inside = torch.bfloat16 if engine.bfloat16_enabled() else torch.float16 if engine.fp16_enabled() else None

    def enter(_: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return _cast(args, inside), _cast(kwargs, inside)

    def leave(_: torch.nn.Module, __: Any, output: Any) -> Any:
        return _cast(output, torch.float32, _HALF)

    if inside is not None:
        engine.module.register_forward_pre_hook(enter, with_kwargs=True)
    if inside is not None or engine.torch_autocast_enabled():
        engine.module.register_forward_hook(leave)
    return engine


def _cast(data: Any, dtype: torch.dtype | None, only: tuple[torch.dtype, ...] = ()) -> Any:
    """Return ``data`` with its floating-point tensors (those of the types ``only``, if any) as ``dtype``."""
    if isinstance(data, torch.Tensor):
        return data.to(dtype) if data.is_floating_point() and (not only or data.dtype in only) else data
    if isinstance(data, dict):
        values = {key: _cast(value, dtype, only) for key, value in data.items()}
        return values if type(data) is dict else _like(data, values)
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(_cast(value, dtype, only) for value in data))
    if isinstance(data, list | tuple):
        return type(data)(_cast(value, dtype, only) for value in data)
    return data


def _like(data: dict[Any, Any], values: dict[Any, Any]) -> Any:
    """Return ``values`` in a dict of the class of ``data`` (the outputs of transformers are such)."""
    try:
        return type(data)(**values)
    except TypeError:
        return values
