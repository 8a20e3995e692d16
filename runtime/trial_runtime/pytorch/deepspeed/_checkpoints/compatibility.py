"""Compare a checkpoint with the engines before anything is loaded, and report every difference in one error."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch.optim import Optimizer

from trial_runtime import core
from trial_runtime.errors import CheckpointMismatchError, InvalidCheckpointException
from trial_runtime.pytorch._checkpoints import restricted_load
from trial_runtime.pytorch.deepspeed._checkpoints.export import engines as engines_in

logger = logging.getLogger("trial_runtime.pytorch.deepspeed")

_SHARDS = "*zero_pp_rank_*_optim_states.pt"


def check(path: Path, engines: list[Any], distributed: core.DistributedContext) -> None:
    """Compare a checkpoint with the engines that are to load it. Collective.

    Args:
        path: a checkpoint with a folder ``model{i}`` for each engine.
        engines: the engines.
        distributed: the ranks; the chief reads.

    Raises:
        CheckpointMismatchError: on every rank, with every difference: engines, ZeRO stages, number formats,
            parameters, optimizers.
    """
    problems = distributed.broadcast(list(_problems(path, engines)) if distributed.rank == 0 else None)
    if problems:
        raise CheckpointMismatchError(
            f"Failed to load deepspeed checkpoint {path}: it does not fit the trial: {'; '.join(problems)}. Resume "
            "with the trial as it was when it was saved, or begin a new run with its weights (`ds-train "
            "runs export`)."
        )
    left = len(engines_in(path)) - len(engines)
    if left > 0 and distributed.rank == 0:
        logger.warning(f"Checkpoint {path.name} has {left} engines more than the trial; they are left out.")


def _problems(path: Path, engines: list[Any]) -> Iterator[str]:
    there = engines_in(path)
    if len(there) < len(engines):
        yield f"it has {len(there)} engines, the trial {len(engines)}"
    for index, engine in enumerate(engines[: len(there)]):
        folder = path / f"model{index}"
        was, now = _sharding(folder), _sharding_of(engine)
        if was != now:
            yield f"engine {index} was {was}, and is {now} now"
            continue
        try:
            yield from (f"engine {index}: {difference}" for difference in _differences(folder, engine, was))
        except (OSError, InvalidCheckpointException, RuntimeError, KeyError, TypeError, AttributeError) as error:
            logger.debug(f"cannot determine what {folder} was saved from: {error!r}")  # loading it reports more


def _sharding(folder: Path) -> str:
    """Return how an engine was sharded, from the names of its files."""
    shards = [file.name for file in folder.glob(_SHARDS)]
    if not shards:
        return "at ZeRO stage 0"
    stage = "3" if any(folder.glob("*zero_pp_rank_*_model_states.pt")) else "1 or 2"
    return f"at ZeRO stage {stage}" + (" in bf16" if shards[0].startswith("bf16_") else "")


def _sharding_of(engine: Any) -> str:
    stage = int(engine.zero_optimization_stage())
    if stage == 0:
        return "at ZeRO stage 0"
    return f"at ZeRO stage {'3' if stage == 3 else '1 or 2'}" + (" in bf16" if engine.bfloat16_enabled() else "")


def _differences(folder: Path, engine: Any, sharding: str) -> Iterator[str]:
    if engine.pipeline_parallelism or engine.mp_world_size > 1 or engine.has_moe_layers:
        return  # split into parts, which only all ranks together know
    facts = _read(next(iter(sorted(folder.glob("*mp_rank_00_model_states.pt")))))
    if sharding == "at ZeRO stage 0":
        saved = facts["optimizer"]
        half = "fp32_groups" in saved or "fp32_groups_flat" in saved
        if half != (engine.fp16_enabled() or engine.bfloat16_enabled()):
            yield f"it was in {'half' if half else 'full'} precision, and is in {'full' if half else 'half'} now"
            return
        saved = saved["optimizer_state_dict"] if half else saved
        yield from _changed(_shapes([facts["module"]]), _shapes([engine.module.state_dict()]))
    else:
        saved = _read(next(iter(sorted(folder.glob(_SHARDS)))))["optimizer_state_dict"]
        saved = saved.get("base_optimizer_state") or saved["optimizer_state_dict"]
        yield from _changed(_shapes(facts["param_shapes"]), _shapes(engine._get_zero_param_shapes()))
    optimizer = engine.optimizer.optimizer if hasattr(engine.optimizer, "optimizer") else engine.optimizer
    yield from _optimizer_differences(saved, optimizer)


def _optimizer_differences(saved: Mapping[str, Any], optimizer: Any) -> Iterator[str]:
    kind = type(optimizer)
    if (kind.state_dict, kind.load_state_dict) != (Optimizer.state_dict, Optimizer.load_state_dict):
        # Its groups may be those of the optimizer inside that was active; its own load_state_dict judges the rest.
        had, has = saved.keys(), optimizer.state_dict().keys()
        if had - has and has - had:
            yield f"the optimizer saved {_listed(had - has)}; {kind.__name__} saves {_listed(has - had)}"
        return
    groups = saved["param_groups"]
    if len(groups) != len(optimizer.param_groups):
        yield f"the optimizer had {len(groups)} parameter groups, and has {len(optimizer.param_groups)} now"
    elif groups:
        had, has = groups[0].keys(), optimizer.param_groups[0].keys()
        if had - has and has - had:  # a newer torch has more settings, another optimizer has others
            yield (
                f"the optimizer was another one, with the settings {_listed(had - has)}; "
                f"{type(optimizer).__name__} has {_listed(has - had)}"
            )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def _read(file: Path) -> dict[str, Any]:
    """Read a file of DeepSpeed; its tensors stay on the disk."""
    content: dict[str, Any] = restricted_load.read(file, mmap=True)
    return content


def _shapes(groups: list[Mapping[str, Any]]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of tensors (or the shapes given) by name."""
    return {name: tuple(getattr(value, "shape", value)) for group in groups for name, value in group.items()}


def _changed(was: Mapping[str, tuple[int, ...]], now: Mapping[str, tuple[int, ...]]) -> Iterator[str]:
    other = [
        f"{name} was {list(was[name])} and is {list(now[name])}"
        for name in was
        if was[name] != now.get(name, was[name])
    ]
    for what, names in (
        ("", other),
        ("the model has no more ", [name for name in was if name not in now]),
        ("the model has now ", [name for name in now if name not in was]),
    ):
        if names:
            yield what + ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
