"""Load checkpoints of another number of ranks, by way of DeepSpeed's universal format."""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from trial_runtime import core
from trial_runtime.errors import InvalidCheckpointException
from trial_runtime.pytorch._checkpoints import restricted_load
from trial_runtime.pytorch.deepspeed._checkpoints.optimizer_state_names import (
    OptimizerStates,
    UnknownStateError,
    alias_states,
    fill_placeholders,
    move_states,
    read_states,
    restore_names,
)
from trial_runtime.pytorch.deepspeed._checkpoints.pipeline_stages import extract_stage

logger = logging.getLogger("trial_runtime.pytorch.deepspeed")


@contextlib.contextmanager
def loadable(
    path: Path, engines: list[Any], distributed: core.DistributedContext, has_shared_disk: bool = True
) -> Iterator[Path]:
    """Yield the checkpoint in a form that engines on this number of ranks load; removed at the end. Collective.

    Args:
        path: a checkpoint with a folder ``model{i}`` for each engine.
        engines: the engines; those whose shards fit load them as they are.
        distributed: the ranks.
        has_shared_disk: whether they see the same folder; else one rank of each machine converts.

    Raises:
        InvalidCheckpointException: on every rank, when a conversion fails, a pipeline had other stages, or experts were
            on other ranks.
    """
    _check_parts(path, engines)
    _check_experts(path, engines, distributed.size)
    others = {
        index: int(engine.zero_optimization_stage())
        for index, engine in enumerate(engines)
        if not _fits(path / f"model{index}", engine)
    }
    if not others:
        yield path
        return
    converted = path.with_name(f".tmp-universal-{path.name}")
    try:
        converts = distributed.rank == 0 if has_shared_disk else distributed.local_rank == 0
        outcomes = distributed.allgather(_convert(path, converted, others) if converts else None)
        kept = next((failure for failure in outcomes if isinstance(failure, str)), outcomes[0])
        if isinstance(kept, str):
            raise InvalidCheckpointException(
                f"Checkpoint {path} was saved by another number of ranks, and converting it for {distributed.size} "
                f"failed: {kept}. Resume on as many ranks as saved it."
            )
        for index in others:
            engines[index]._config.load_universal_checkpoint = True
        yield converted
        for index, stage in others.items():
            if stage == 3:
                _complete_stage_3(engines[index].optimizer, converted / f"model{index}", kept[index])
            else:
                _set_numbers(engines[index].optimizer.optimizer, kept[index])
    finally:
        for index in others:
            engines[index]._config.load_universal_checkpoint = False
        distributed.barrier()
        if distributed.rank == 0 if has_shared_disk else distributed.local_rank == 0:
            shutil.rmtree(converted, ignore_errors=True)


def _check_parts(path: Path, engines: list[Any]) -> None:
    """Refuse a model that was split in another number of parts: by tensors, or without ZeRO by a pipeline's stages."""
    for index, engine in enumerate(engines):
        parts = len(list((path / f"model{index}").glob("mp_rank_*_model_states.pt")))
        by_name = engine.pipeline_parallelism and int(engine.zero_optimization_stage()) > 0
        if parts not in (0, engine.mp_world_size) and not by_name:
            raise InvalidCheckpointException(
                f"Checkpoint {path} was saved with engine {index} split in {parts} parts (stages of a pipeline). It "
                f"has {engine.mp_world_size} now, and DeepSpeed cannot split its optimizer's state again. "
                f"Resume with {parts}. (Pipelines trained at ZeRO stage 1 resume with any number of stages.)"
            )


def _check_experts(path: Path, engines: list[Any], size: int) -> None:
    """Refuse a mixture of experts that was on another number of ranks, each with separate experts."""
    saved = len(list(path.glob("rank_*.pt")))
    if saved not in (0, size) and any(engine.has_moe_layers for engine in engines):
        raise InvalidCheckpointException(
            f"Checkpoint {path} was saved by {saved} ranks, and there are {size} now. Its model has a mixture of "
            f"experts, which DeepSpeed cannot distribute to ranks again. Resume on {saved} ranks."
        )


def _fits(folder: Path, engine: Any) -> bool:
    """Return whether the engine's optimizer has as many shards as there are data-parallel ranks."""
    if int(engine.zero_optimization_stage()) == 0 or not folder.is_dir():
        return True
    ranks = {file.name.split("_pp_rank_")[1].split("_")[0] for file in folder.glob("*zero_pp_rank_*_optim_states.pt")}
    parts = len(list(folder.glob("mp_rank_*_model_states.pt")))
    return not ranks or (len(ranks) == engine.dp_world_size and parts in (0, engine.mp_world_size))


def _convert(path: Path, converted: Path, others: dict[int, int]) -> dict[int, OptimizerStates] | str:
    """Write the converted checkpoint; returns what the optimizers keep, or the reason of a failure.

    Args:
        others: the engines whose shards do not fit, with their ZeRO stages.
    """
    logger.info(f"Converting checkpoint {path.name} for another number of ranks.")
    shutil.rmtree(converted, ignore_errors=True)
    kept = {}
    try:
        converted.mkdir()
        for entry in path.iterdir():
            if entry.name not in {f"model{index}" for index in others}:
                (converted / entry.name).symlink_to(entry.absolute())
        for index, stage in others.items():
            kept[index] = _convert_engine(path / f"model{index}", converted / f"model{index}", stage)
    except UnknownStateError as error:
        return str(error)
    except Exception as error:
        return repr(error)
    return kept


def _convert_engine(source: Path, target: Path, stage: int) -> OptimizerStates:
    """Convert an engine, whatever its optimizer keeps for each number of a parameter; a pipeline stage by stage."""
    kept = read_states(source)
    if any(source.glob("layer_*-model_states.pt")):
        _convert_stages(source, target, kept)
    else:
        _convert_states(source, target, kept)
    if stage == 3:
        fill_placeholders(target)
    return kept


def _convert_stages(source: Path, target: Path, kept: OptimizerStates) -> None:
    """Convert a pipeline: the state of each stage by itself, all of them gathered; its layers stay as they are."""
    stages = sorted(source.glob("mp_rank_*_model_states.pt"))
    for number in range(len(stages)):
        alone, made = (target.with_name(f"{target.name}-{what}-of-stage{number}") for what in ("files", "made"))
        extract_stage(source, number, alone)
        _convert_states(alone, made if number else target, kept)
        if number:
            shutil.copytree(made / "zero", target / "zero", dirs_exist_ok=True)
    for file in (*source.glob("layer_*-model_states.pt"), *stages):
        (target / file.name).unlink(missing_ok=True)
        (target / file.name).symlink_to(file.absolute())


def _convert_states(source: Path, target: Path, kept: OptimizerStates) -> None:
    if kept.is_adam_like:
        _run_converter(source, target)
        return
    for number, pair in enumerate(kept.pairs):
        aliased, made = (target.with_name(f"{target.name}-{what}{number}") for what in ("aliased", "made"))
        alias_states(source, aliased, pair)
        _run_converter(aliased, made)
        restore_names(made, pair)
        if number == 0:
            made.rename(target)
        else:
            move_states(target, made, pair)


def _run_converter(source: Path, target: Path) -> None:
    from deepspeed.checkpoint.ds_to_universal import main

    arguments = SimpleNamespace(
        input_folder=str(source),
        output_folder=str(target),
        num_extract_workers=1,
        num_merge_workers=1,
        keep_temp_folder=False,
        strict=True,
        inject_missing_state=True,
    )
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        main(arguments)


def _set_numbers(optimizer: torch.optim.Optimizer, kept: OptimizerStates) -> None:
    """Give a torch optimizer, over one flat parameter a group, the single numbers that it kept."""
    for group, numbers in zip(optimizer.param_groups, kept.numbers, strict=True):
        _update(optimizer.state[group["params"][0]], numbers)


def _complete_stage_3(optimizer: Any, folder: Path, kept: OptimizerStates) -> None:
    """Load what DeepSpeed's loader leaves out at stage 3, where it knows Adam only.

    It gives all parameter groups the first one's settings, and one counter of steps, which each of them increases.
    """
    inner = optimizer.optimizer
    saved = restricted_load.read(folder / "zero" / "optimizer_state.pt")
    for group, own in zip(inner.param_groups, saved["optimizer_state_dict"]["param_groups"], strict=True):
        group.update({name: value for name, value in own.items() if name != "params"})
    for number, parameters in enumerate(optimizer.fp16_groups):
        flat = optimizer.fp32_partitioned_groups_flat[number]
        state = inner.state[flat]
        former = dict(state)
        if not kept.is_adam_like:
            state.clear()
            for name in kept.names:
                state[name] = torch.zeros_like(flat)
                start = 0
                for parameter in parameters:
                    part = optimizer.load_hp_checkpoint_state(
                        str(folder / "zero" / optimizer.param_names[parameter]), name, param=parameter
                    )
                    state[name].narrow(0, start, part.numel()).copy_(part)
                    start += part.numel()
        _update(state, kept.numbers[optimizer.sub_group_to_group_id[number]], former)


def _update(state: dict[str, Any], numbers: dict[str, Any], former: dict[str, Any] | None = None) -> None:
    """Set single numbers, each state its own, on the device where the former ones are."""
    for name, value in numbers.items():
        was = (former or state).get(name)
        state[name] = copy.deepcopy(value)
        if isinstance(value, torch.Tensor) and isinstance(was, torch.Tensor):
            state[name] = state[name].to(was.device)
