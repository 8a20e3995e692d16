"""Automatic mixed precision for whole modules."""

from __future__ import annotations

import functools
from typing import Any

import torch


def autocast_forward(module: torch.nn.Module, device: torch.device) -> torch.nn.Module:
    """Run ``module.forward`` under autocast on an accelerator, and give its fp16 outputs back in fp32.

    Changes the module and returns it.
    """
    forward = module.forward

    @functools.wraps(forward)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(device.type, enabled=device.type == "cuda"):
            output = forward(*args, **kwargs)
        return _to_fp32(output)

    module.forward = wrapped
    return module


def _to_fp32(output: Any) -> Any:
    if isinstance(output, torch.Tensor):
        return output.float() if output.dtype == torch.float16 else output
    if isinstance(output, dict):
        return {key: _to_fp32(value) for key, value in output.items()}
    if isinstance(output, tuple) and hasattr(output, "_fields"):
        return type(output)(*(_to_fp32(value) for value in output))
    if isinstance(output, list | tuple):
        return type(output)(_to_fp32(value) for value in output)
    return output
