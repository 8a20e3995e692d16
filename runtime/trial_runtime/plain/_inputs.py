"""Inputs of an engine's module, on its device."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from trial_runtime.pytorch._ddp_buffers import LiveHooks


class InputMove(LiveHooks):
    """Move of a module's inputs to a device before its forwards, as DataParallel and DistributedDataParallel do it.

    Args:
        module: a model whose forward the script calls, directly or through an engine.
        device: that of its parameters.
    """

    def __init__(self, module: torch.nn.Module, device: torch.device) -> None:
        super().__init__(module)
        self.device = device
        module.register_forward_pre_hook(self._before, with_kwargs=True)

    def _before(self, module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        del module
        return _moved(args, self.device), _moved(kwargs, self.device)


def _moved(value: Any, device: torch.device) -> Any:
    """Return a value with the tensors of it, of its tuples, lists and dicts on a device."""
    if isinstance(value, (torch.Tensor, PackedSequence)):
        to: Any = value.to
        return to(device)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_moved(item, device) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)(_moved(item, device) for item in value)
    if isinstance(value, dict):
        return type(value)((key, _moved(item, device)) for key, item in value.items())
    return value
