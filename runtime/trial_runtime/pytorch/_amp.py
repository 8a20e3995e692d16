"""Automatic mixed precision for whole modules."""

from __future__ import annotations

from typing import Any, TypeVar

import torch

ModuleT = TypeVar("ModuleT", bound=torch.nn.Module)


def autocast_forward(module: ModuleT, enabled: bool = True, device_type: str = "cuda") -> ModuleT:
    """Run a module's forward under autocast, and give its fp16 outputs back in fp32, so that the code around it need
    not know. Tensors are looked for in tuples, lists and dicts.

    Args:
        module: hooks are added to it, which its copies have too; they see calls of the module, not of ``forward``.
        enabled: False leaves it as it is.
        device_type: the device that computes.

    Returns:
        the module.
    """
    if enabled:
        autocast = _Autocast(device_type)
        module.register_forward_pre_hook(autocast.enter)
        module.register_forward_hook(autocast.leave, always_call=True)
    return module


class _Autocast:
    """Autocast between two hooks. Forwards nest, they do not overlap."""

    def __init__(self, device_type: str) -> None:
        self._device_type = device_type
        self._entered: list[Any] = []

    def enter(self, module: torch.nn.Module, args: Any) -> None:
        del module, args
        autocast: Any = torch.autocast(self._device_type)
        autocast.__enter__()
        self._entered.append(autocast)

    def leave(self, module: torch.nn.Module, args: Any, output: Any) -> Any:
        del module, args
        self._entered.pop().__exit__(None, None, None)
        return _to_fp32(output)


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
