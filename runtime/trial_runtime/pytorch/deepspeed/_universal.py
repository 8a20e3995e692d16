"""Checkpoints of another number of ranks: ZeRO's shards are put together by DeepSpeed's universal format."""

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
from trial_runtime.pytorch.deepspeed._lent_names import (
    ADAM,
    UnknownStateError,
    check_adams,
    gather,
    give_back,
    lend,
    pairs_of_states,
)

logger = logging.getLogger("trial_runtime.pytorch.deepspeed")


@contextlib.contextmanager
def loadable(path: Path, engines: list[Any], distributed: core.DistributedContext) -> Iterator[Path]:
    """The checkpoint in a form that engines on this number of ranks load; removed at the end. Collective.

    Args:
        path: a checkpoint with a folder ``model{i}`` for each engine.
        engines: the engines; those whose shards fit load them as they are.
        distributed: the ranks.

    Raises:
        InvalidCheckpointException: on every rank, when a conversion fails, or a pipeline had other stages.
    """
    _check_parts(path, engines)
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
        problem = distributed.broadcast(_convert(path, converted, others) if distributed.rank == 0 else None)
        if problem is not None:
            raise InvalidCheckpointException(
                f"Checkpoint {path} was saved by another number of ranks, and bringing it to {distributed.size} "
                f"failed: {problem}. Resume on as many ranks as saved it."
            )
        for index in others:
            engines[index]._config.load_universal_checkpoint = True
        yield converted
        for index, stage in others.items():
            if stage == 3:
                _part_groups(engines[index], converted / f"model{index}")
    finally:
        for index in others:
            engines[index]._config.load_universal_checkpoint = False
        distributed.barrier()
        if distributed.rank == 0:
            shutil.rmtree(converted, ignore_errors=True)


def _check_parts(path: Path, engines: list[Any]) -> None:
    """Refuse a model that was split among another number of ranks: by a pipeline's stages, or by tensors."""
    for index, engine in enumerate(engines):
        parts = len(list((path / f"model{index}").glob("mp_rank_*_model_states.pt")))
        if parts not in (0, engine.mp_world_size):
            raise InvalidCheckpointException(
                f"Checkpoint {path} was saved with engine {index} split in {parts} parts (stages of a pipeline). It "
                f"has {engine.mp_world_size} now, and DeepSpeed cannot share out its optimizer's state anew. "
                f"Resume with {parts}."
            )


def _fits(folder: Path, engine: Any) -> bool:
    """Whether the engine's optimizer shards are as many as its data-parallel ranks."""
    if int(engine.zero_optimization_stage()) == 0 or not folder.is_dir():
        return True
    ranks = {file.name.split("_pp_rank_")[1].split("_")[0] for file in folder.glob("*zero_pp_rank_*_optim_states.pt")}
    return not ranks or len(ranks) == engine.dp_world_size


def _convert(path: Path, converted: Path, others: dict[int, int]) -> str | None:
    """Write the converted checkpoint; what went wrong, or None.

    Args:
        others: the engines whose shards do not fit, with their ZeRO stages.
    """
    logger.info(f"Bringing checkpoint {path.name} to another number of ranks.")
    shutil.rmtree(converted, ignore_errors=True)
    converted.mkdir()
    try:
        for entry in path.iterdir():
            if entry.name not in {f"model{index}" for index in others}:
                (converted / entry.name).symlink_to(entry.absolute())
        for index, stage in others.items():
            source, target = path / f"model{index}", converted / f"model{index}"
            if stage == 3:
                check_adams(source)
                _run_converter(source, target)
            else:
                _with_any_states(source, target)
    except UnknownStateError as error:
        return str(error)
    except Exception as error:
        return repr(error)
    return None


def _with_any_states(source: Path, target: Path) -> None:
    """Convert an engine of ZeRO stage 1 or 2, whatever its optimizer keeps for each number of a parameter."""
    first, *others = pairs_of_states(source)
    if (first, others) == (ADAM, []):
        _run_converter(source, target)
        return
    for number, pair in enumerate((first, *others)):
        lent, made = (target.with_name(f"{target.name}-{what}{number}") for what in ("lent", "made"))
        lend(source, lent, pair)
        _run_converter(lent, made)
        give_back(made, pair)
        if number == 0:
            made.rename(target)
        else:
            gather(target, made, pair)


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


def _part_groups(engine: Any, folder: Path) -> None:
    """Give parameter groups of stage 3 what is their own: DeepSpeed's loader gives all of them the first one's settings
    and one counter of steps, which each of them counts on."""
    optimizer = engine.optimizer.optimizer
    saved = torch.load(folder / "zero" / "optimizer_state.pt", map_location="cpu", weights_only=False)
    for group, own in zip(optimizer.param_groups, saved["optimizer_state_dict"]["param_groups"], strict=True):
        group.update({name: value for name, value in own.items() if name != "params"})
    for state in optimizer.state.values():
        state["step"] = copy.deepcopy(state["step"])
