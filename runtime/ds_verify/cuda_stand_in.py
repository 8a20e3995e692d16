"""A stand-in for CUDA on a CPU: tensors and modules that are sent to a GPU stay where they are, on both sides.

Real trials write ``.cuda()`` and ``device="cuda"``. On a machine without a GPU each of them raises, before anything
could be compared. What asks (``torch.cuda.is_available()``, ``device_count()``, ``Tensor.is_cuda``) still gets a true
answer, so a trial that chooses its device itself takes the path that it takes on any CPU.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode

_CPU = torch.device("cpu")
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    # torch.compile has a rule for each function, so no two may be one object.
    **{
        name: lambda *_, **__: None
        for name in ("set_device", "synchronize", "init", "ipc_collect", "reset_peak_memory_stats",
                     "reset_max_memory_allocated", "reset_max_memory_cached", "set_rng_state", "set_rng_state_all")
    },
    "current_device": lambda: 0,
    "get_device_name": lambda *_: "CPU, in place of CUDA",
    "get_device_capability": lambda *_: (0, 0),
    "get_rng_state": lambda *_: torch.empty(0, dtype=torch.uint8),
    "get_rng_state_all": list,
    "initial_seed": torch.initial_seed,
    "memory_summary": lambda *_, **__: "",
    "current_stream": lambda *_: Stream(),
    "default_stream": lambda *_: Stream(),
    "stream": lambda *_: contextlib.nullcontext(),
    "device": lambda *_: contextlib.nullcontext(),
}  # fmt: skip
_TENSOR_TYPES = (
    "FloatTensor", "DoubleTensor", "HalfTensor", "BFloat16Tensor", "ByteTensor", "CharTensor", "ShortTensor",
    "IntTensor", "LongTensor", "BoolTensor",
)  # fmt: skip


class Stream:
    """A stream, or an event, of a device whose work is done when a call returns."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def query(self) -> bool:
        """Return that all work is done."""
        return True

    def elapsed_time(self, end_event: object) -> float:  # noqa: ARG002
        """Return 0: events are not timed."""
        return 0.0

    def synchronize(self, *_: object) -> None:
        """Return at once."""

    wait = record = wait_stream = wait_event = synchronize

    def record_event(self, event: Stream | None = None) -> Stream:
        """Return the event."""
        return event or Stream()


class _OnCpu(TorchFunctionMode):
    """Sends to the CPU what is sent to CUDA."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is torch.device:  # a name alone moves nothing, and code compares it
            return func(*args, **(kwargs or {}))
        if func is torch.Tensor.cuda:
            return torch.Tensor.to(args[0], _CPU)
        if func in (torch.Tensor.pin_memory, torch.Tensor.record_stream):
            return args[0]
        takes_index = func is torch.Tensor.to
        named = {
            name: _CPU if name == "device" and _is_index(value) else _moved(value)
            for name, value in (kwargs or {}).items()
        }
        return func(*(_CPU if takes_index and _is_index(value) else _moved(value) for value in args), **named)


def _is_index(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _moved(value: Any) -> Any:
    """Return the CPU for a CUDA device, a type of CPU tensors for one of CUDA tensors; all else as it is."""
    if isinstance(value, torch.device):
        return _CPU if value.type == "cuda" else value
    if isinstance(value, str):
        if value == "cuda" or value.startswith("cuda:"):
            return _CPU
        return value.replace("torch.cuda.", "torch.") if value.startswith("torch.cuda.") else value
    return value


@contextlib.contextmanager
def cuda_on_cpu() -> Iterator[None]:
    """Have all that is sent to CUDA stay on the CPU, for the block."""
    replaced: list[tuple[Any, str, Any]] = [
        *((torch.cuda, name, function) for name, function in _FUNCTIONS.items()),
        *((torch.cuda, name, getattr(torch, name)) for name in _TENSOR_TYPES),
        *((torch.cuda, name, Stream) for name in ("Stream", "Event")),
        (torch, "load", _with_argument(torch.load, 1, "map_location")),
        (torch, "set_default_tensor_type", _with_argument(torch.set_default_tensor_type, 0, "t")),
        (DistributedDataParallel, "__init__", _without_devices(DistributedDataParallel.__init__)),
    ]
    before = [(module, name, getattr(module, name)) for module, name, _ in replaced]
    _set(replaced)
    try:
        with _OnCpu():
            yield
    finally:
        _set(before)


def _set(attributes: list[tuple[Any, str, Any]]) -> None:
    for module, name, value in attributes:
        setattr(module, name, value)


def _with_argument(function: Callable[..., Any], position: int, name: str) -> Callable[..., Any]:
    """Return the function with the CPU for CUDA in one argument, and for a location that is not given."""

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        if len(args) > position:
            args = (*args[:position], _moved(args[position]), *args[position + 1 :])
        else:
            kwargs[name] = _moved(kwargs.get(name))
            if kwargs[name] is None and name == "map_location":
                kwargs[name] = _CPU
        return function(*args, **kwargs)

    return called


def _without_devices(make: Callable[..., None]) -> Callable[..., None]:
    """Return the constructor of DistributedDataParallel without the GPUs that it is given."""

    @functools.wraps(make)
    def made(self: Any, module: Any, device_ids: Any = None, output_device: Any = None, *args: Any, **kw: Any) -> None:
        del device_ids, output_device
        make(self, module, None, None, *args, **kw)

    return made
