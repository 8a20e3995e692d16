"""Batches for a CPU that raise where a GPU would, when a trial has not moved them.

On a CPU a forgotten ``context.to_device()`` goes unseen, since everything lies in the same memory. So the observed
trial gets batches of marked tensors. Moving one to a device, as ``to_device()`` does, takes the mark off; a marked one
that meets weights, or a tensor that was moved, raises as it would on a GPU.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch

_MOVES = (torch.Tensor.to, torch.Tensor.cuda)


class NotMovedError(RuntimeError):
    """Use of a batch's tensor with those of the device before it was moved there."""


class HostTensor(torch.Tensor):
    """A tensor that has not been moved to the device."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if any(isinstance(value, torch.nn.Parameter) for value in args):
            raise NotMovedError(
                f"{getattr(func, '__name__', func)}() got a batch that lies on the host and weights that lie on the "
                f"device: move the batch with context.to_device()"
            )
        result = super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]
        if func in _MOVES and _names_device(func, args[1:], kwargs or {}) and isinstance(result, torch.Tensor):
            return result.as_subclass(torch.Tensor)
        return result


def _names_device(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    if func is torch.Tensor.cuda:
        return True
    given = [*args, *kwargs.values()]
    return any(
        isinstance(value, str | torch.device)
        or (isinstance(value, int) and not isinstance(value, bool))
        or (isinstance(value, torch.Tensor) and not isinstance(value, HostTensor))
        for value in given
    )


def marked(batch: Any) -> Any:
    """Return the batch with its tensors marked; other values as they are."""
    if type(batch) is torch.Tensor:
        return batch.as_subclass(HostTensor)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(marked(value) for value in batch))
    if type(batch) in (list, tuple):
        return type(batch)(marked(value) for value in batch)
    if type(batch) is dict:
        return {name: marked(value) for name, value in batch.items()}
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        fields = {field.name: marked(getattr(batch, field.name)) for field in dataclasses.fields(batch) if field.init}
        return dataclasses.replace(batch, **fields)
    return batch


class MarkedBatches:
    """An iterable or iterator of batches, each marked; everything else is the one inside's."""

    def __init__(self, batches: Any) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return (marked(batch) for batch in self._batches)

    def __next__(self) -> Any:
        return marked(next(self._batches))

    def __len__(self) -> int:
        return len(self._batches)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)


def refuse_in_forward(module: torch.nn.Module, inputs: Any) -> None:
    """Refuse marked tensors: a hook before each forward of modules with weights, and of losses.

    Raises:
        NotMovedError: it does; or some of its inputs were moved and some were not.
    """
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    on_host = [isinstance(value, HostTensor) for value in tensors]
    mixed = any(on_host) and any(not host and value.dim() for host, value in zip(on_host, tensors, strict=True))
    if any(on_host) and (mixed or next(iter(module.parameters()), None) is not None):
        raise NotMovedError(
            f"the forward of {type(module).__name__} got a batch that lies on the host: "
            f"move it with context.to_device()"
        )
