"""The check that all ranks still train one model, whatever a script decides or draws on each rank."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from trial_runtime.errors import InvalidExperimentException

_LARGEST_STEP = 1024  # checks come after steps 1, 2, 4, ... up to this one, then each time so many have been made
_TOLERANCE = 1e-3  # of the largest value in a tensor: far above rounding, which differs between kinds of GPUs
_FLOOR = 1e-6
_checked: weakref.WeakSet[Any] = weakref.WeakSet()  # engines


def check_ranks(engine: Any) -> None:
    """Have an engine raise an error on all ranks where their options or trained weights are no longer the same.

    Gradients are averaged over ranks, so that all make the same step. Where a learning rate, a change of the weights
    or a random number in them is each rank's own, the ranks train different models from then on, without a word, and
    rank 0's is saved.

    Args:
        engine: of several ranks. A check takes about as long as averaging the gradients once, and is seldom.
    """
    original = engine.step

    def step(*args: Any, **kwargs: Any) -> Any:
        before = engine.global_steps
        result = original(*args, **kwargs)
        if engine.global_steps != before:
            check_step(engine)
        return result

    engine.step = step
    _checked.add(engine)


def check_step(engine: Any) -> None:
    """Check the ranks of an engine that has made a step, where they are checked, and as seldom as they are."""
    made = engine.global_steps
    if engine in _checked and (made % _LARGEST_STEP == 0 or (made < _LARGEST_STEP and made & (made - 1) == 0)):
        _check(engine, made)


def _check(engine: Any, made: int) -> None:
    group = engine.data_parallel_group
    weights = list(_trained(engine))
    options = {
        f"{name} of the optimizer's group {i}": value
        for i, options in enumerate(engine.optimizer.param_groups)
        for name, value in _numbers(options)
    }
    for rank, other in enumerate(ranks := _from_each({"number of trained weights": len(weights), **options}, group)):
        for name in ranks[0].keys() | other.keys():
            expected, found = ranks[0].get(name), other.get(name)
            if expected != found and not _is_close(expected, found):
                raise _error(f"{name} is {expected} on rank 0 and {found} on rank {rank}", made)
    gaps = {name: gap for name, weight in weights if (gap := _gap(weight.data, group))}
    for rank, found in enumerate(_from_each(gaps, group)):
        for name, gap in found.items():
            raise _error(f"values of {name} on ranks 0 and {rank} differ by up to {gap:.2g}", made)


def _error(difference: str, made: int) -> InvalidExperimentException:
    return InvalidExperimentException(
        f"The ranks train different models: after {made} steps {difference}. Each rank decides something by itself, "
        "such as a learning rate by the metric on its samples alone, or draws random numbers that all need alike. Take "
        "it from all ranks (mean_over_ranks, rank_0_decides, one seed), or pass check_ranks=False to match_torch() to "
        "train on."
    )


def _trained(engine: Any) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Yield the parameters that each rank has whole."""
    if engine.zero_optimization_stage() < 3:
        for name, parameter in engine.module.named_parameters():
            if (
                parameter.requires_grad
                and type(parameter.data) is torch.Tensor
                and getattr(parameter, "allreduce", True)
            ):
                yield name, parameter


def _numbers(options: dict[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in options.items():
        is_sequence = isinstance(value, (tuple, list))
        for i, part in enumerate(value if is_sequence else (value,)) if name != "params" else ():
            if isinstance(part, (int, float)) or (torch.is_tensor(part) and part.numel() == 1):
                yield f"{name}[{i}]" if is_sequence else name, float(part)


def _is_close(first: float | None, second: float | None) -> bool:
    if first is None or second is None:
        return False
    return math.isclose(first, second, rel_tol=_FLOOR) or (math.isnan(first) and math.isnan(second))


def _gap(own: torch.Tensor, group: Any) -> float:
    """Return how far a rank's values are from rank 0's, 0.0 where no further than by rounding. Collective."""
    first = own.clone()
    dist.broadcast(first, dist.get_global_rank(group, 0), group)
    if torch.equal(first, own):
        return 0.0
    gap = (first - own).abs().nan_to_num(0.0).max().item()
    return float(gap) if gap > max(_TOLERANCE * first.abs().nan_to_num(0.0).max().item(), _FLOOR) else 0.0


def _from_each(given: dict[str, Any], group: Any) -> list[dict[str, Any]]:
    """Return what each rank gives, on each rank. Collective."""
    found: list[dict[str, Any]] = [{} for _ in range(dist.get_world_size(group))]
    dist.all_gather_object(found, given, group)
    return found
