"""Checkpoints of converted scripts: the files that the original wrote, at ZeRO stages 1 and 2 too."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist

from trial_runtime.errors import InvalidCheckpointException
from trial_runtime.plain._distributed import is_main_rank
from trial_runtime.plain._engine import matched_engines

# What torch's elementwise optimizers keep once for each parameter; everything else has the parameter's shape.
_PER_PARAMETER = frozenset({"step", "mu_product", "eta", "mu"})
_SHARE = "share"  # the key of a rank's own state, in what other ranks than 0 get


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return an optimizer's ``state_dict()`` as torch makes it without an engine. Collective at ZeRO stages 1 and 2.

    There each rank has a share of the state: rank 0 gets all of it, in host memory, and the others the options and a
    copy of their share, from which :func:`load_optimizer_state` restores it in the same run.

    Args:
        optimizer: of the script, or of its engine.
    """
    zero = _sharded(optimizer)
    if zero is None:
        return optimizer.state_dict()
    state: dict[int, dict[str, Any]] = {}
    groups: list[dict[str, Any]] = []
    for i, group in enumerate(zero.optimizer.param_groups):
        share = zero.single_partition_of_fp32_groups[i]
        first, parameters = sum(len(g["params"]) for g in groups), zero.bit16_groups[i]
        options = {key: value for key, value in group.items() if key != "params"}
        groups.append({**options, "params": list(range(first, first + len(parameters)))})
        for key, value in zero.optimizer.state.get(share, {}).items():
            whole = _gathered(value, zero.real_dp_process_group[i]) if _is_sharded(key, value) else None
            for n, (parameter, offset) in enumerate(zip(parameters, _offsets(zero, i), strict=True)):
                if not is_main_rank():
                    continue
                own = value.clone() if torch.is_tensor(value) else value
                if whole is not None:
                    own = whole.narrow(0, offset, parameter.numel()).view(parameter.shape).clone()
                state.setdefault(first + n, {})[key] = own
    found: dict[str, Any] = {"state": state, "param_groups": groups}
    return found if is_main_rank() else {**found, _SHARE: _own_share(zero)}


def load_optimizer_state(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load what :func:`optimizer_state` or ``state_dict()`` of the original returned, on any number of ranks.

    Args:
        optimizer: of the script, or of its engine.
        state: the whole state, on each rank, or what :func:`optimizer_state` returned on this rank.

    Raises:
        ValueError: the groups have other numbers of parameters.
        InvalidCheckpointException: at ZeRO stages 1 and 2, which step all parameters of a group together, for
            parameters that were not stepped equally often.
    """
    zero = _sharded(optimizer)
    if zero is None:
        optimizer.load_state_dict(state)
        return
    saved = state["param_groups"]
    found, expected = [len(group["params"]) for group in saved], [len(group) for group in zero.bit16_groups]
    if found != expected:
        raise ValueError(f"the state has groups of {found} parameters, and the optimizer of {expected}")
    shares = copy.deepcopy(state.get(_SHARE)) or {
        i: _share(zero, i, [state["state"].get(n, {}) for n in saved[i]["params"]]) for i in range(len(saved))
    }
    groups = [{**group, "params": [i]} for i, group in enumerate(saved)]
    zero.optimizer.load_state_dict({"state": shares, "param_groups": groups})


def save_on_main_rank(obj: object, *args: Any, **kwargs: Any) -> None:
    """Save as ``torch.save`` does, on rank 0. Call it on all ranks where making ``obj`` takes all of them."""
    if is_main_rank():
        torch.save(obj, *args, **kwargs)


def _own_share(zero: Any) -> dict[int, dict[str, Any]]:
    """Return a copy of this rank's share of the state, by the group, in host memory."""
    shares = (zero.optimizer.state.get(share, {}) for share in zero.single_partition_of_fp32_groups)
    return {
        i: {key: value.to("cpu", copy=True) if torch.is_tensor(value) else value for key, value in share.items()}
        for i, share in enumerate(shares)
    }


def _sharded(optimizer: torch.optim.Optimizer) -> Any:
    """Return DeepSpeed's optimizer of ZeRO stages 1 and 2 around an optimizer; None where it has none."""
    for engine in matched_engines():
        around = engine.optimizer
        if hasattr(around, "single_partition_of_fp32_groups") and optimizer in (around, around.optimizer):
            return around
    return None


def _offsets(zero: Any, group: int) -> list[int]:
    """Return where each parameter of a group begins in the group's flat tensor."""
    return [zero.round_robin_bit16_offsets[group][index] for index in zero.round_robin_bit16_indices[group]]


def _is_sharded(key: str, value: object) -> bool:
    return torch.is_tensor(value) and key not in _PER_PARAMETER


def _gathered(share: torch.Tensor, ranks: Any) -> torch.Tensor | None:
    """Return the shares of all ranks behind each other, on rank 0. Collective."""
    shares = [torch.empty_like(share) for _ in range(dist.get_world_size(ranks))] if is_main_rank() else None
    dist.gather(share, shares, dst=0, group=ranks)
    return torch.cat([each.cpu() for each in shares]) if shares is not None else None


def _share(zero: Any, group: int, states: list[dict[str, Any]]) -> dict[str, Any]:
    """Return this rank's share of what a group's parameters have as state."""
    first = states[0]
    result: dict[str, Any] = {}
    for key in first:
        values = [state.get(key) for state in states]
        if not _is_sharded(key, first[key]):
            if any(value != first[key] for value in values):
                raise InvalidCheckpointException(
                    f"The optimizer's state has {key} {sorted({str(value) for value in values})} for parameters of one "
                    "group, and ZeRO stages 1 and 2 step a group together: set the stage to 0."
                )
            result[key] = first[key]
            continue
        whole = torch.zeros(len(zero.bit16_groups_flat[group]))
        for value, parameter, offset in zip(values, zero.bit16_groups[group], _offsets(zero, group), strict=True):
            if value is None or value.shape != parameter.shape:
                raise InvalidCheckpointException(
                    f"The optimizer's state has {key} of shape {getattr(value, 'shape', None)} for a parameter of "
                    f"shape {tuple(parameter.shape)}: resume with the model that it was saved with."
                )
            whole.narrow(0, offset, parameter.numel()).copy_(value.flatten())
        size = zero.partition_size[group]
        result[key] = whole.narrow(0, size * dist.get_rank(zero.real_dp_process_group[group]), size).clone()
    if not first and any(states):
        raise InvalidCheckpointException(
            "The optimizer's state lacks parameters that were never stepped, and ZeRO stages 1 and 2 step all of a "
            "group together: set the stage to 0."
        )
    return result
