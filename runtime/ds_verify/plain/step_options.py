"""Options of a step that need not act in the few steps that are observed, recorded by value.

A clipping norm that no gradient exceeds, a weight decay too small to be seen, a schedule that changes no rate yet.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch
from torch.optim import lr_scheduler

from ds_verify.plain.weights import norm
from ds_verify.record import Key, Record

_CLIPPING = ("clip_grad_norm_", "clip_grad_value_")
_ANOTHER_WAY = frozenset({"foreach", "fused", "capturable", "differentiable", "verbose"})
"""Flags that change how a number is computed or shown, not which one."""


class StepOptions:
    """The options of the step under way: of optimizers by name, of clipping, and how often schedules were stepped.

    Where an option has several values, that of each parameter is recorded too, in the first step and where a parameter
    gets another one of them.
    """

    def __init__(self) -> None:
        self._options: dict[str, set[float]] = {}
        self._by_parameter: dict[str, dict[str, float]] = {}
        self._places: dict[tuple[str, str], int] = {}  # of a parameter's value among all, as recorded last
        self._clipped: dict[str, list[float]] = {}
        self._schedule_steps = 0
        self._metrics: list[float] = []
        self._schedules: list[Any] = []
        self._advanced: set[int] = set()
        self._stepped: dict[int, Any] = {}

    @property
    def unreached(self) -> list[str]:
        """Schedules that were never stepped."""
        return [type(each).__name__ for each in self._schedules if id(each) not in self._advanced]

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Watch clipping and schedules in the block."""
        with contextlib.ExitStack() as stack:
            for name in _CLIPPING:
                clip = getattr(torch.nn.utils.clip_grad, name)
                for module in (torch.nn.utils, torch.nn.utils.clip_grad):
                    stack.enter_context(mock.patch.object(module, name, self._watched_clip(name, clip)))
            for kind in vars(lr_scheduler).values():
                if isinstance(kind, type) and "step" in vars(kind) and kind is not torch.optim.Optimizer:
                    stack.enter_context(mock.patch.object(kind, "step", self._watched_schedule(vars(kind)["step"])))
                    stack.enter_context(mock.patch.object(kind, "__init__", self._watched_creation(kind)))
            yield

    def _watched_clip(self, name: str, clip: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(clip)
        names = list(signature.parameters)

        @functools.wraps(clip)
        def clipped(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs).arguments
            parameters, limit = given[names[0]], given[names[1]]
            given[names[0]] = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
            gradients = [parameter.grad for parameter in given[names[0]] if parameter.grad is not None]
            if gradients:
                self.add_clipping(name, float(limit))
                clipped = f"{len(gradients)} gradients before {name}"
                found = self._clipped.setdefault(clipped, [])
                found.append(norm(each.to_dense() for each in gradients))
            return clip(**given)

        return clipped

    def _watched_creation(self, kind: Any) -> Callable[..., None]:
        make: Callable[..., None] = kind.__init__

        @functools.wraps(make)
        def made(schedule: Any, *args: Any, **kwargs: Any) -> None:
            make(schedule, *args, **kwargs)
            self._advanced.discard(id(schedule))  # its first step is a part of its creation
            if all(schedule is not each for each in self._schedules):
                self._schedules.append(schedule)

        return made

    def _watched_schedule(self, step: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(step)
        def stepped(schedule: Any, *args: Any, **kwargs: Any) -> Any:
            self._schedule_steps += 1
            self._advanced.add(id(schedule))
            self._stepped[id(schedule)] = schedule
            if isinstance(schedule, lr_scheduler.ReduceLROnPlateau):
                self._metrics.append(float(args[0] if args else kwargs["metrics"]))
            return step(schedule, *args, **kwargs)

        return stepped

    def _add_schedule(self, schedule: Any) -> None:
        """Add the options that a schedule was made with, and how far it is."""
        kind = type(schedule)
        for name in inspect.signature(kind).parameters:
            shown = "total steps" if name == "last_epoch" else name
            for part, value in _numbers(shown, vars(schedule).get(name)):
                self._options.setdefault(f"{part} of {kind.__name__}", set()).add(value)

    def add_clipping(self, name: str, limit: float) -> None:
        """Add a limit of gradients; none that is infinite, which only measures."""
        if math.isfinite(limit):
            self._options.setdefault(f"limits of {name}", set()).add(limit)

    def add_optimizer(self, optimizer: Any, names: Sequence[Sequence[str]] = ()) -> None:
        """Add the options of an optimizer that steps: learning rates, weight decay, momentum and the like.

        Args:
            optimizer: about to step.
            names: of the parameters of each of its groups; none where they are not known.
        """
        groups = optimizer.param_groups
        for group, parameters in zip(groups, names or [()] * len(groups), strict=True):
            if not group["params"]:
                continue
            for name in optimizer.defaults:
                for part, value in _numbers(name, group.get(name)):
                    option = "learning rates" if part == "lr" else part
                    self._options.setdefault(option, set()).add(value)
                    self._by_parameter.setdefault(option, {}).update(dict.fromkeys(parameters, value))

    def add_to(self, record: Record, step: int, rank: int) -> None:
        """Record the options of a step."""
        for schedule in self._stepped.values():
            self._add_schedule(schedule)
        self._stepped.clear()
        record.add(Key("lr", step, "steps of schedules", rank), self._schedule_steps)
        for name, values in self._options.items():
            record.add(Key("lr", step, name, rank), sorted(values))
        for name, found in self._by_parameter.items():
            ordered = sorted(self._options[name])
            for parameter, value in found.items() if len(ordered) > 1 else ():
                if self._places.get((name, parameter)) != ordered.index(value):
                    self._places[name, parameter] = ordered.index(value)
                    record.add(Key("lr", step, f"{name} of {parameter}", rank), value)
        for name, norms in self._clipped.items():
            record.add(Key("norm", step, name, rank), math.hypot(*norms))  # an engine that clips has none
        if self._metrics:
            record.add(Key("validation", step, "metrics of ReduceLROnPlateau", rank), self._metrics)
        self._metrics = []
        self._options.clear()
        self._by_parameter.clear()
        self._clipped.clear()
        self._schedule_steps = 0


def _numbers(name: str, value: Any) -> Iterator[tuple[str, float]]:
    if isinstance(value, tuple | list):
        for number, each in enumerate(value):
            yield from _numbers(f"{name}[{number}]", each)
    elif isinstance(value, torch.Tensor):
        yield from [(name, float(value))] if value.numel() == 1 else []
    elif isinstance(value, Counter):
        yield from _numbers(name, sorted(value.elements()))
    elif isinstance(value, str):
        yield f"{name} {value!r}", 1.0
    elif isinstance(value, int | float) and name not in _ANOTHER_WAY:
        yield name, float(value)
