"""Parameters and buffers of a script, under names that do not depend on what wraps its modules.

A script has no object that holds all it trains. Its modules are noted as they are made, in an order that a conversion
does not change: ``Net.conv1.weight``, and ``Net#2.conv1.weight`` of the second ``Net``. Engines, wrappers of
DistributedDataParallel and lists that gather several models for one engine are looked through.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any
from unittest import mock

import torch
from torch.optim import Optimizer

_WRAPPERS = (
    "DistributedDataParallel",
    "DataParallel",
    "DeepSpeedEngine",
    "OptimizedModule",
    "FullyShardedDataParallel",
)
_LIBRARIES = ("deepspeed.", "trial_runtime.")


class ModuleRegistry:
    """The modules and optimizers of a script in the order of creation; copies count. All of them are kept alive.

    Attributes:
        has_batches: returns whether the script has read a batch of its data. What an optimizer that is made after that
            holds without a module is made of a batch, as an attack on that is: each rank has its own, which no
            gradients are averaged of.
    """

    def __init__(self) -> None:
        self.has_batches: Callable[[], bool] = lambda: False
        self._of_batches: set[int] = set()
        self.modules: list[torch.nn.Module] = []
        self._known: set[int] = set()
        self.optimized: list[torch.Tensor] = []
        self.optimizers: list[Optimizer] = []

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Note what is made in the block."""
        module: Any = torch.nn.Module.__init__
        copied: Any = torch.nn.Module.__setstate__
        group = Optimizer.add_param_group

        @functools.wraps(module)
        def made(instance: Any, *args: Any, **kwargs: Any) -> None:
            module(instance, *args, **kwargs)
            self._add(instance)

        @functools.wraps(copied)
        def restored(instance: Any, state: Any) -> None:
            copied(instance, state)
            self._add(instance)

        @functools.wraps(group)
        def optimizes(instance: Any, param_group: Any) -> None:
            group(instance, param_group)
            if all(instance is not each for each in self.optimizers):
                self.optimizers.append(instance)
            self.optimized += instance.param_groups[-1]["params"]
            if self.has_batches():
                self._of_batches |= {id(tensor) for tensor in instance.param_groups[-1]["params"]}

        with (
            mock.patch.object(torch.nn.Module, "__init__", made),
            mock.patch.object(torch.nn.Module, "__setstate__", restored),
            mock.patch.object(Optimizer, "add_param_group", optimizes),
        ):
            yield

    def _add(self, module: torch.nn.Module) -> None:
        if id(module) not in self._known:
            self._known.add(id(module))
            self.modules.append(module)

    def roots(self) -> Iterator[tuple[str, torch.nn.Module]]:
        """Yield the modules that belong to no other one, each with its name."""
        inner = {
            id(part)
            for module in self.modules
            if not _is_wrapper(module)
            for part in module.modules()
            if part is not module
        }
        counts: dict[str, int] = {}
        for module in self.modules:
            if id(module) in inner or _is_wrapper(module) or not _has_tensors(module):
                continue
            name = type(module).__name__
            counts[name] = counts.get(name, 0) + 1
            yield (name if counts[name] == 1 else f"{name}#{counts[name]}"), module

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return all parameters and buffers by name, and what is optimized without a module."""
        found: dict[str, torch.Tensor] = {}
        known: set[int] = set()
        for root, module in self.roots():
            wrappers = {path for path, part in module.named_modules() if type(part).__name__ in _WRAPPERS}
            for name, tensor in (*module.named_parameters(), *module.named_buffers()):
                if id(tensor) not in known:
                    known.add(id(tensor))
                    found[f"{root}.{_without_wrappers(name, wrappers)}"] = tensor
        alone = [tensor for tensor in dict.fromkeys(self.optimized) if id(tensor) not in known]
        return found | {f"parameter {number} of no module": tensor for number, tensor in enumerate(alone, 1)}

    def trained(self) -> list[torch.Tensor]:
        """Return what optimizers hold, and all other parameters of modules.

        A loop may read the gradients of these too, to clip them with others, or to move weights without an optimizer.
        """
        wholes = [parameter for _, module in self.roots() for parameter in module.parameters()]
        own = self._of_batches - {id(parameter) for parameter in wholes}
        return list(dict.fromkeys(p for p in (*self.optimized, *wholes) if id(p) not in own))

    def optimized_names(self) -> list[str]:
        """Return the names of the tensors that optimizers hold, and that are the same on all ranks."""
        held = {id(tensor) for tensor in self.trained()} & {id(tensor) for tensor in self.optimized}
        return [name for name, tensor in self.tensors().items() if id(tensor) in held]

    def name_of(self, optimizer: Optimizer) -> str:
        """Return the class of an optimizer, and the modules of which it steps parameters."""
        held = {id(tensor) for group in optimizer.param_groups for tensor in group["params"]}
        owners = [name for name, root in self.roots() if any(id(each) in held for each in root.parameters())]
        return " of ".join((type(optimizer).__name__, ", ".join(owners))) if owners else type(optimizer).__name__

    def norms(self) -> dict[str, float]:
        """Return the L2 norm of each root's parameters and of its buffers, in float64; none where they are spread."""
        found: dict[str, float] = {}
        for root, module in self.roots():
            for kind, tensors in (("parameters", module.parameters()), ("buffers", module.buffers())):
                listed = [tensor for tensor in tensors if tensor.is_floating_point() or tensor.is_complex()]
                if listed and not any(hasattr(tensor, "ds_id") for tensor in listed):
                    found[f"{root} {kind}"] = norm(listed)
        return found


def _without_wrappers(name: str, wrappers: Collection[str]) -> str:
    """Return the name of a tensor without the attributes in which wrappers, at these paths, hold their modules."""
    parts = name.split(".")
    return ".".join(part for index, part in enumerate(parts) if ".".join(parts[:index]) not in wrappers)


def norm(tensors: Iterable[torch.Tensor]) -> float:
    """Return the L2 norm of all tensors together, in float64."""
    parts = (torch.view_as_real(each.detach()) if each.is_complex() else each.detach() for each in tensors)
    return math.sqrt(sum(float(torch.linalg.vector_norm(each, dtype=torch.float64)) ** 2 for each in parts))


def _is_wrapper(module: torch.nn.Module) -> bool:
    """Return whether the user's modules are looked for inside: a list has no forward, so it is no model itself."""
    kind = type(module)
    if isinstance(module, torch.nn.ModuleList | torch.nn.ModuleDict):
        return True
    return kind.__name__ in _WRAPPERS or f"{kind.__module__}.".startswith(_LIBRARIES)


def _has_tensors(module: torch.nn.Module) -> bool:
    return next(iter(module.parameters()), None) is not None or next(module.buffers(), None) is not None
