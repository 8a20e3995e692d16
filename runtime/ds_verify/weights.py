"""Parameters and buffers of a trial, under names that do not depend on which API trains it."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Iterator, Mapping
from typing import Any, cast

import torch

_DEPTH = 4
"""Levels of attributes in which modules are found: trial.workers["a"][0].model."""


def modules_of(trial: object, home: str) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yield every module that the trial holds, by attribute: its own, in containers, and in objects of the user's code.

    Args:
        trial: the trial.
        home: the folder of the user's code; objects of classes from elsewhere are not looked into.
    """
    for name, held in _held("", trial, _DEPTH, home, {id(trial)}):
        if isinstance(held, torch.nn.Module):
            yield name, held


def _held(
    name: str, value: object, depth: int, home: str, seen: set[int]
) -> Iterator[tuple[str, torch.nn.Module | torch.nn.Parameter]]:
    """Yield modules, and parameters of none, by attribute."""
    for part, held in _parts(value):
        inner = f"{name}.{part}" if name else part
        if isinstance(held, torch.nn.Module):
            yield inner, unwrapped(held)
        elif isinstance(held, torch.nn.Parameter):
            yield inner, held
        elif depth and id(held) not in seen and (isinstance(held, list | tuple | Mapping) or _is_users(held, home)):
            seen.add(id(held))
            yield from _held(inner, held, depth - 1, home, seen)


def _parts(value: object) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [(str(key), held) for key, held in value.items()]
    if isinstance(value, list | tuple):
        return [(str(index), held) for index, held in enumerate(value)]
    return list(getattr(value, "__dict__", {}).items())


def _is_users(value: object, home: str) -> bool:
    module = sys.modules.get(type(value).__module__)
    return (getattr(module, "__file__", None) or "").startswith(home)


def unwrapped(module: torch.nn.Module) -> torch.nn.Module:
    """Return the user's module inside an engine, a wrapper of DistributedDataParallel, of torch.compile."""
    while True:
        kind = type(module).__name__
        if kind in ("DeepSpeedEngine", "PipelineEngine") or isinstance(
            module, torch.nn.parallel.DistributedDataParallel | torch.nn.DataParallel
        ):
            module = cast(torch.nn.Module, module.module)
        elif kind == "OptimizedModule":
            module = cast(torch.nn.Module, module._orig_mod)
        else:
            return module


def tensors_of(trial: object, home: str) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Return all parameters and buffers by name, and the other names of those that several attributes reach."""
    found: dict[str, torch.Tensor] = {}
    names: dict[int, str] = {}
    aliases: dict[str, str] = {}
    for attribute, held in _held("", trial, _DEPTH, home, {id(trial)}):
        parts: list[tuple[str, torch.Tensor]] = [("", held)] if isinstance(held, torch.nn.Parameter) else []
        if isinstance(held, torch.nn.Module):
            parts += held.named_parameters(remove_duplicate=False)
            parts += held.named_buffers(remove_duplicate=False)
        for name, tensor in parts:
            full = f"{attribute}.{name}" if name else attribute
            if id(tensor) in names:
                aliases[full] = names[id(tensor)]
            else:
                names[id(tensor)] = full
                found[full] = tensor
    return found, aliases


@contextlib.contextmanager
def whole(tensors: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """Gather parameters that ZeRO stage 3 has spread over the ranks, for the block. Collective."""
    spread = [tensor for tensor in tensors.values() if hasattr(tensor, "ds_id")]
    if not spread:
        yield
        return
    import deepspeed

    with deepspeed.zero.GatheredParameters(spread):
        yield


def norms(trial: object, home: str) -> dict[str, float]:
    """Return the L2 norm of each module's parameters and floating buffers, in float64; none where they are spread."""
    squares: dict[str, float] = {}
    known: dict[int, float] = {}
    for attribute, module in modules_of(trial, home):
        for kind, tensors in (("parameters", module.parameters()), ("buffers", module.buffers())):
            for tensor in tensors:
                if hasattr(tensor, "ds_id"):
                    return {}
                if not tensor.is_floating_point():
                    continue
                if id(tensor) not in known:
                    known[id(tensor)] = float(torch.linalg.vector_norm(tensor.detach(), dtype=torch.float64)) ** 2
                name = f"{attribute} {kind}"
                squares[name] = squares.get(name, 0.0) + known[id(tensor)]
    return {name: math.sqrt(square) for name, square in squares.items()}


def precision(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return the coarsest precision of the weights: "bfloat16", "float16" or "float32"."""
    kinds = {tensor.dtype for tensor in tensors.values() if isinstance(tensor, torch.nn.Parameter)}
    coarse = {torch.bfloat16: "bfloat16", torch.float16: "float16"}
    return next((name for kind, name in coarse.items() if kind in kinds), "float32")


def move_by_one_ulp(tensors: Mapping[str, torch.Tensor]) -> None:
    """Move every weight to the next number that its precision has, up or down at random, the same on every rank."""
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for tensor in tensors.values():
            if isinstance(tensor, torch.nn.Parameter) and tensor.is_floating_point():
                up = torch.rand(tensor.shape, generator=draw).to(tensor.device) < 0.5
                towards = torch.where(up, math.inf, -math.inf).to(tensor.dtype)
                tensor.copy_(torch.nextafter(tensor, towards))
