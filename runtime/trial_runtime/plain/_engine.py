"""Engines that train as the loop did: what DeepSpeed does otherwise than torch without a word."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from trial_runtime import core
from trial_runtime.errors import InvalidExperimentException
from trial_runtime.plain._copied_engine import keep_copyable
from trial_runtime.plain._inputs import InputMove
from trial_runtime.plain._module import keep_portable, step_written_weights
from trial_runtime.plain._rank_check import check_ranks as check_ranks_of
from trial_runtime.pytorch._ddp_buffers import BufferSync
from trial_runtime.pytorch.deepspeed._patches import apply_to_engine
from trial_runtime.pytorch.deepspeed._patches.patch import NewEngine

Engine = TypeVar("Engine")

_matched: list[weakref.ref[Any]] = []
_contexts: weakref.WeakKeyDictionary[Any, core.DistributedContext] = weakref.WeakKeyDictionary()  # by process group
_ENGINE = "_trial_runtime_engine"  # attribute of an optimizer, which torch leaves out of its state and of copies


def match_torch(
    engine: Engine,
    *,
    broadcast_buffers: bool = False,
    keep_gradients: bool = False,
    move_inputs: bool = False,
    check_ranks: bool = True,
) -> Engine:
    """Have an engine train as torch does, and return it. Call it right after ``deepspeed.initialize``, on all ranks.

    - A parameter that no backward reached since the last step stays as it is. DeepSpeed steps it with a gradient of
      zero, so that weight decay and momentum move it. Beyond ZeRO stage 1 that is not possible: a warning names it.
    - A second ``backward()`` before ``step()`` is refused at ZeRO stages 1 and 2, which would lose the first one's
      gradients.
    - ``backward()`` returns the loss as it was given, not divided by the accumulation steps.
    - A loss may go through the forward of another engine, at stage 0.
    - In float16 losses are scaled as torch's GradScaler scales them.
    - Weights that the script loads, initializes anew or changes in place stay. At ZeRO stages 1 and 2 the next step
      would undo them.
    - The module can be pickled, as by ``torch.save(model)``, and is read without DeepSpeed.
    - At stage 0 the engine can be copied and pickled, as with an object that keeps it. A copy becomes an engine where
      it is first used, on all ranks.

    Args:
        engine: of ``deepspeed.initialize``, not of a pipeline.
        broadcast_buffers: whether all ranks get rank 0's buffers (running statistics and the like) before each forward
            that trains, as DistributedDataParallel does by default. DeepSpeed leaves each rank its own.
        keep_gradients: whether ``step()`` leaves the gradients, for a script that reads them later and clears them
            itself. Only at ZeRO stage 0.
        move_inputs: whether the module's inputs are moved to its device before each forward, as DataParallel and
            DistributedDataParallel with ``device_ids`` do. DeepSpeed leaves them where they are.
        check_ranks: whether ranks that no longer have the same weights and options, such as the learning rate, raise an
            error: after 1, 2, 4, ... 1024 steps, then each 1024. DeepSpeed trains on, each rank another model.

    Raises:
        InvalidExperimentException: ``keep_gradients``, or complex parameters, beyond ZeRO stage 0.
        InvalidExperimentException: the optimizer has parameters that are not in the engine's module. DeepSpeed would
            step them with gradients that it neither averages over ranks nor clears. So are parameters that
            ``add_param_group()`` adds later.
        InvalidExperimentException: later, from ``backward()``, for a second call that would lose the first one's
            gradients; from ``step()``, on all ranks, where they train different models.
    """
    unwrapped: Any = engine
    if keep_gradients and unwrapped.zero_optimization_stage():
        raise InvalidExperimentException(
            f"keep_gradients requires ZeRO stage 0, and this engine has stage {unwrapped.zero_optimization_stage()}: "
            "the others keep no gradients in the parameters"
        )
    if unwrapped.zero_optimization_stage() and any(p.is_complex() for p in unwrapped.module.parameters()):
        raise InvalidExperimentException(
            "complex parameters require ZeRO stage 0, and this engine has stage "
            f"{unwrapped.zero_optimization_stage()}: the others join all parameters, and average real parts alone"
        )
    _check_parameters(unwrapped)
    _check_later_groups(unwrapped)
    distributed = _ranks()
    _free_unused()
    apply_to_engine(NewEngine(engine, matched_engines(), distributed))
    _matched.append(weakref.ref(engine))
    setattr(getattr(unwrapped.optimizer, "optimizer", unwrapped.optimizer), _ENGINE, engine)
    module: torch.nn.Module = engine.module  # type: ignore[attr-defined]
    if broadcast_buffers and distributed.size > 1:
        for called in _with_forward(module):
            if BufferSync.needed(called):
                BufferSync(called)
    for called in _with_forward(module) if move_inputs else ():
        if not InputMove.are_on(called):
            InputMove(called, unwrapped.device)
    if keep_gradients:
        unwrapped.zero_grad = lambda: None
    if check_ranks and distributed.size > 1:
        check_ranks_of(unwrapped)
    keep_portable(engine)
    options = {"broadcast_buffers": broadcast_buffers, "keep_gradients": keep_gradients}
    keep_copyable(engine, match_torch, {**options, "move_inputs": move_inputs, "check_ranks": check_ranks})
    step_written_weights(engine)
    return engine


def _with_forward(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """Yield the module, or the modules in a container that has no ``forward()``, as ``nn.ModuleList``."""
    if type(module).forward is not torch.nn.Module.forward:
        yield module
        return
    for child in module.children():
        yield from _with_forward(child)


def _check_parameters(engine: Any) -> None:
    """Raise where the script's optimizer has parameters beside the module's; ZeRO refuses these itself."""
    if engine.optimizer is not engine.client_optimizer:
        return
    known = {id(parameter) for parameter in engine.module.parameters()}
    groups = [group["params"] for group in engine.optimizer.param_groups]
    foreign = [
        parameter for group in groups for parameter in group if parameter.requires_grad and id(parameter) not in known
    ]
    if foreign:
        shapes = ", ".join(str(tuple(parameter.shape)) for parameter in foreign[:3])
        more = ", ..." if len(foreign) > 3 else ""
        raise InvalidExperimentException(
            f"{len(foreign)} of the optimizer's {sum(map(len, groups))} parameters are not in the engine's module, "
            f"with the shapes {shapes}{more}: their gradients would not be averaged over ranks; give "
            "deepspeed.initialize a torch.nn.ModuleList of all modules that the optimizer steps"
        )


def _check_later_groups(engine: Any) -> None:
    """Have the script's optimizer refuse further parameters that are not in the engine's module."""
    if engine.optimizer is not engine.client_optimizer or not hasattr(engine.optimizer, "add_param_group"):
        return
    reference, original = weakref.ref(engine), engine.optimizer.add_param_group

    def add_param_group(param_group: dict[str, Any]) -> None:
        original(param_group)
        held = reference()
        if held is not None:
            _check_parameters(held)

    engine.optimizer.add_param_group = add_param_group


def _free_unused() -> None:
    """Free the engines that nothing refers to any more, as those of earlier folds, with their modules and optimizers.

    Engines refer to themselves, so that Python alone would free them at some later time.
    """
    if matched_engines():
        gc.collect()
    _matched[:] = [reference for reference in _matched if reference() is not None]


def engine_of(optimizer: torch.optim.Optimizer) -> Any:
    """Return the engine that steps an optimizer: for optimizers in lists and dicts, which no engine's name leads to.

    Raises:
        InvalidExperimentException: no engine was made for it.
    """
    engine = getattr(optimizer, _ENGINE, None)
    if engine is None:
        raise InvalidExperimentException(
            f"no engine steps this {type(optimizer).__name__}: give it to deepspeed.initialize(model=..., "
            "optimizer=...), and the engine to match_torch(), before its first step"
        )
    return engine


def matched_engines() -> list[Any]:
    """Return the engines that train as torch does, and still exist."""
    return [engine for engine in (reference() for reference in _matched) if engine is not None]


def use_scaler(engine: Any, scaler: torch.amp.GradScaler | None, *, update: bool = True) -> None:
    """Have an engine scale losses with a script's own scaler: unscale before clipping, skip overflows, update in step.

    The scaler stays the script's: its settings, ``enabled`` and ``state_dict()`` are those of the original.

    Args:
        engine: of ``deepspeed.initialize`` at ZeRO stage 0, without ``fp16``.
        scaler: the scaler; None to scale no losses.
        update: whether ``engine.step()`` updates the scale. False where the script calls ``scaler.update()`` itself,
            as behind the steps of several engines.

    Raises:
        InvalidExperimentException: at ZeRO stages 1 to 3, or with ``fp16``: DeepSpeed scales losses otherwise there.
    """
    stage, is_half = engine.zero_optimization_stage(), engine.fp16_enabled()
    if stage or is_half:
        raise InvalidExperimentException(
            f"a GradScaler requires ZeRO stage 0 without fp16, and this engine has stage {stage}, fp16 {is_half}: "
            "set the stage to 0, and leave fp16 out"
        )
    engine.torch_autocast_z0_gradscaler = scaler if update or scaler is None else _WithoutUpdate(scaler)


class _WithoutUpdate:
    """GradScaler that the script updates itself."""

    def __init__(self, scaler: torch.amp.GradScaler) -> None:
        self.scale, self.unscale_, self.step = scaler.scale, scaler.unscale_, scaler.step

    def update(self) -> None:
        """Do nothing: the script does it."""


def _ranks() -> core.DistributedContext:
    """Return the ranks, with one gloo group for all engines: each has threads and open files until the process ends."""
    world = dist.group.WORLD
    if world is None or dist.get_world_size() == 1:
        return core.DistributedContext(rank=0, size=1, local_rank=0, local_size=1, cross_rank=0, cross_size=1)
    if world not in _contexts:
        _contexts[world] = core.DistributedContext.from_torch_distributed()
    return _contexts[world]
