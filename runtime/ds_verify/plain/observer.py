"""Observe the training of a script that is not edited, through torch and DeepSpeed.

A **step** is one or more backwards and then one or more steps of optimizers, up to the next backward: one step of a
plain loop, of accumulated gradients, of two optimizers for one loss. Each side is observed where both do the same:

- the losses that enter a backward, summed over the step. ``engine.backward(loss)`` counts as the loss divided by the
  accumulation steps, as DeepSpeed divides it; a loss that a GradScaler scaled counts unscaled.
- the norm of the gradients that the optimizers see, and their options, when they step.
- norms of weights and buffers when the next backward begins: ZeRO gathers weights after the optimizer has stepped.
- on rank 0, evaluations, and what ``torch.save`` writes, since the step before.
"""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ds_verify.plain.evaluations import Evaluations
from ds_verify.plain.reference import RankGroup
from ds_verify.plain.saved_files import SavedFiles
from ds_verify.plain.step_options import StepOptions
from ds_verify.plain.weights import ModuleRegistry, norm
from ds_verify.record import Key, Record
from ds_verify.weights import whole

OUTSIDE = "optimizer steps that an engine knows nothing of"
PRECISION = "bytes of a number in weights and buffers"


@dataclass
class _Step:
    """The step that is under way."""

    loss: float = 0.0
    backwards: int = 0
    squares: float = 0.0
    optimizers: int = 0


@dataclass
class Observer:
    """Records one rank's part of a training.

    Attributes:
        group: the ranks of the run.
        modules: of the script.
        steps: after which it ends. first: the number of steps before this run, which resumes another one.
        saves_from: a run that is resumed later ends when it has saved, after so many steps at least; 0: it does not.
        report_progress: called with the number of steps so far.
        after_backward: called after each outermost backward of the script.
        end: called when what is observed is over; it ends the process. An exception could be caught by the script, or
            end only one of its threads.
        record: what was observed. engines: DeepSpeed's, in the order of creation.
        saved: the checkpoints that the script writes.
    """

    group: RankGroup
    modules: ModuleRegistry
    steps: int
    first: int = 0
    saves_from: int = 0
    report_progress: Callable[[int], None] = lambda _: None
    after_backward: Callable[[], None] = lambda: None
    end: Callable[[], None] = lambda: None
    record: Record = field(default_factory=Record)
    engines: list[Any] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    done: int = 0
    _step: _Step = field(default_factory=_Step)
    _depth: int = 0
    _in_engine: int = 0
    _outside: int = 0
    _scaled: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    _began: float = 0.0
    _stepped: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.done = self.first
        self.evaluations = Evaluations(self.modules)
        self.saved = SavedFiles(self.record, self.group.rank, lambda: self.place)
        self._options = StepOptions()

    @contextlib.contextmanager
    def watching(self, has_engines: bool) -> Iterator[None]:
        """Observe what the script does in the block.

        Args:
            has_engines: whether it uses DeepSpeed, which is imported then.
        """
        with contextlib.ExitStack() as stack:
            stack.callback(register_optimizer_step_pre_hook(self._optimizer_steps).remove)
            stack.enter_context(mock.patch.object(torch.autograd, "backward", self._watched_backward()))
            stack.enter_context(mock.patch.object(torch.amp.GradScaler, "scale", self._watched_scale()))
            stack.enter_context(self.saved.watched())
            stack.enter_context(self._options.watched())
            stack.enter_context(self.evaluations.watched())
            if has_engines:
                from deepspeed.runtime.engine import DeepSpeedEngine

                for name, watched in (
                    ("__init__", self._watched_engine),
                    ("backward", self._watched_engine_backward),
                    ("step", self._watched_engine_step),
                    ("save_checkpoint", self.saved.watched_engine_save),
                ):
                    replaced = watched(getattr(DeepSpeedEngine, name))
                    stack.enter_context(mock.patch.object(DeepSpeedEngine, name, replaced))
            yield

    def finish(self) -> None:
        """Record the end: what the last step left, and the final weights. Collective under ZeRO stage 3."""
        self._end_step()
        self._add_evaluations()
        self.record.add(Key("setup", 0, OUTSIDE, self.group.rank), self._outside)
        self._add_weights("state", self.done)
        sizes = {tensor.element_size() for tensor in self.modules.tensors().values() if tensor.is_floating_point()}
        self.record.add(Key("setup", 0, PRECISION, self.group.rank), sorted(sizes))

    @property
    def unstepped(self) -> list[str]:
        """The optimizers that never stepped, and no other one stepped with their groups."""
        return [
            self.modules.name_of(each)
            for each in self.modules.optimizers
            if not {id(each), id(each.param_groups)} & self._stepped
        ]

    @property
    def unreached_schedules(self) -> list[str]:
        """The schedules that never stepped."""
        return self._options.unreached

    def _watched_backward(self) -> Callable[..., Any]:
        backward = torch.autograd.backward

        @functools.wraps(backward)
        def observed(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
            if not self._depth:
                self._backward_begins(_value(tensors, grad_tensors, self._scaled))
            with self._nested():
                result = backward(tensors, grad_tensors, *args, **kwargs)
            if not self._depth:
                self.after_backward()
            return result

        return observed

    def _watched_engine_backward(self, backward: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(backward)
        def observed(engine: Any, loss: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._depth:
                share = engine.gradient_accumulation_steps() if kwargs.get("scale_wrt_gas", True) else 1
                self._backward_begins(_value(loss, None, self._scaled) / share)
            with self._nested(), _unfilled():
                return backward(engine, loss, *args, **kwargs)

        return observed

    def _watched_engine_step(self, step: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(step)
        def observed(engine: Any, *args: Any, **kwargs: Any) -> Any:
            with self._engine_runs():
                return step(engine, *args, **kwargs)

        return observed

    def _watched_engine(self, make: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(make)
        def made(engine: Any, *args: Any, **kwargs: Any) -> None:
            with self._engine_runs():
                make(engine, *args, **kwargs)
            self.engines.append(engine)

        return made

    def _watched_scale(self) -> Callable[..., Any]:
        scale = torch.amp.GradScaler.scale

        @functools.wraps(scale)
        def scaled(scaler: Any, outputs: Any) -> Any:
            result = scale(scaler, outputs)
            if isinstance(result, torch.Tensor):
                self._scaled[id(result)] = result, outputs
            return result

        return scaled

    @property
    def place(self) -> int:
        """The step that has been trained last, also where the next one has not shown its end."""
        return self.done + (self._step.optimizers > 0)

    def _add_evaluations(self) -> None:
        if self.group.rank == 0:
            self.evaluations.add_to(self.record, self.place)

    @contextlib.contextmanager
    def _engine_runs(self) -> Iterator[None]:
        self._in_engine += 1
        try:
            with _unfilled():
                yield
        finally:
            self._in_engine -= 1

    @contextlib.contextmanager
    def _nested(self) -> Iterator[None]:
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def _backward_begins(self, loss: float) -> None:
        if self._end_step() and self._is_over():
            self.end()
        if self.done == self.first and not self._step.backwards:
            self._add_weights("initial", self.first)
        self._step.loss += loss
        self._step.backwards += 1
        self._scaled.clear()

    def _optimizer_steps(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        del args, kwargs
        step = self._step
        if not step.backwards:
            return  # an engine that allocates the optimizer's state
        engines = [engine for engine in self.engines if engine.basic_optimizer is optimizer]
        if engines and not (self._in_engine or any(engine._running_engine_step for engine in engines)):
            self._outside += 1
        gradients = [
            tensor.grad.to_dense() if tensor.grad.is_sparse else tensor.grad
            for group in optimizer.param_groups
            for tensor in group["params"]
            if tensor.grad is not None
        ]
        self._stepped |= {id(optimizer), id(optimizer.param_groups)}
        square = norm(gradients) ** 2
        if any(engine.zero_optimization_stage() for engine in engines):
            square = float(self.group.sum(torch.tensor(square, dtype=torch.float64)))
        step.squares += square
        self._options.add_optimizer(optimizer, self._names_of_groups(optimizer, engines))
        for engine in engines:
            if engine.gradient_clipping() > 0:
                self._options.add_clipping("clip_grad_norm_", engine.gradient_clipping())
        step.optimizers += 1

    def _names_of_groups(self, optimizer: Any, engines: Sequence[Any]) -> list[list[str]]:
        """Return the names of the parameters that each group of an optimizer steps; none at ZeRO stage 3."""
        groups = [group["params"] for group in optimizer.param_groups]
        for around in (engine.optimizer for engine in engines if engine.zero_optimization_stage()):
            if not hasattr(around, "bit16_groups"):
                return []
            groups = around.bit16_groups  # the optimizer's own groups have one tensor each, a share of all
        names = {id(tensor): name for name, tensor in self.modules.tensors().items()}
        return [[names.get(id(each), "") for each in group if each.requires_grad] for group in groups]

    def _is_over(self) -> bool:
        """Return whether so many steps are done, or a checkpoint is written from which another run resumes."""
        return self.done >= self.steps or bool(self.saves_from and self.group.any(self.saved.last >= self.saves_from))

    def _end_step(self) -> bool:
        """End the step under way if an optimizer has stepped; return whether it has."""
        step = self._step
        if not step.optimizers:
            return False
        self._add_evaluations()
        self._step = _Step()
        self.done += 1
        rank = self.group.rank
        self.record.add(Key("training", self.done, "loss", rank), step.loss)
        self.record.add(Key("gradient", self.done, "gradient norm", rank), math.sqrt(step.squares))
        self._options.add_to(self.record, self.done, rank)
        for name, value in self.modules.norms().items():
            self.record.add(Key("norm", self.done, name, rank), value)
        now = time.perf_counter()
        if self.done > self.first + 1:
            self.times.append(now - self._began)
        self._began = now
        self.report_progress(self.done)
        return True

    def _add_weights(self, kind: Any, number: int) -> None:
        tensors = self.modules.tensors()
        with whole(tensors):
            for name, tensor in tensors.items():
                value = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
                value = value.float() if value.dtype in (torch.bfloat16, torch.float16) else value
                self.record.add(Key(kind, number, name, self.group.rank), value.cpu().numpy())


@contextlib.contextmanager
def _unfilled() -> Iterator[None]:
    """Leave new tensors as they are: filling makes ZeRO write its whole bucket, two gigabytes, in each step."""
    settings: Any = torch.utils.deterministic
    before, settings.fill_uninitialized_memory = settings.fill_uninitialized_memory, False
    try:
        yield
    finally:
        settings.fill_uninitialized_memory = before


def _value(tensors: Any, gradients: Any, scaled: dict[int, tuple[torch.Tensor, torch.Tensor]]) -> float:
    """Return the number whose gradient a backward takes: the sum of the losses, each times its own gradient."""
    listed = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    factors = gradients if isinstance(gradients, list | tuple) else [gradients] * len(listed)
    total = 0.0
    for tensor, factor in zip(listed, factors, strict=True):
        loss = scaled.get(id(tensor), (tensor, tensor))[1].detach().double()
        total += float((loss if factor is None else loss * factor.detach()).sum())
    return total
