"""States of any elementwise optimizer in DeepSpeed's universal format.

Its converter knows two states of an optimizer, by the names that Adam gives them; its loader takes what it finds. So
the states of other optimizers go through the converter under Adam's names, two at a time, and get their own back then.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

ADAM = ("exp_avg", "exp_avg_sq")
_SHARDS = "*_optim_states.pt"


class UnknownStateError(ValueError):
    """An optimizer keeps something that is not one number for each number of a parameter."""


def pairs_of_states(folder: Path) -> list[tuple[str, ...]]:
    """The names of the optimizer's states in an engine's checkpoint, in pairs to lend Adam's names to. There is at
    least one pair, which may be empty.

    Raises:
        UnknownStateError: a state, other than the step, is no tensor of the shape of the parameters.
    """
    names: dict[str, None] = {}
    for file in folder.glob(_SHARDS):
        for state, lengths in _groups(_load(file)):
            for name, value in state.items():
                if isinstance(value, torch.Tensor) and value.ndim == 1 and len(value) in lengths:
                    names[name] = None
                elif name != "step" and value is not None:
                    raise UnknownStateError(f"the optimizer's {name!r} is not one number for each of a parameter's")
    found = sorted(names)
    return [tuple(found[start : start + 2]) for start in range(0, len(found), 2)] or [()]


def check_adams(folder: Path) -> None:
    """Stage 3's loader knows Adam's states by name, too: no other comes along.

    Raises:
        UnknownStateError: the optimizer keeps others.
    """
    for file in folder.glob(_SHARDS):
        for state in _load(file)["optimizer_state_dict"]["optimizer_state_dict"]["state"].values():
            if state.keys() != {"step", *ADAM}:
                kept = ", ".join(sorted(state)) or "nothing"
                raise UnknownStateError(
                    f"at ZeRO stage 3 DeepSpeed brings only {', '.join(ADAM)} along, this optimizer keeps {kept}"
                )


def lend(folder: Path, borrowed: Path, pair: tuple[str, ...]) -> None:
    """Make ``borrowed`` the engine's checkpoint with the states of ``pair`` under Adam's names, and no others. A state
    that is not there yet (no step was made) is zeros, as optimizers make it."""
    borrowed.mkdir(parents=True)
    for file in folder.iterdir():
        if not file.match(_SHARDS):
            (borrowed / file.name).symlink_to(file.absolute())
            continue
        shard = _load(file)
        states = {}
        for number, (state, lengths) in enumerate(_groups(shard)):
            own = dict(zip(ADAM, pair, strict=False))
            states[number] = {name: state.get(own.get(name, ""), torch.zeros(max(lengths))) for name in ADAM}
            if "step" in state:
                states[number]["step"] = state["step"]
        shard["optimizer_state_dict"]["base_optimizer_state"]["state"] = states
        torch.save(shard, borrowed / file.name)


def give_back(converted: Path, pair: tuple[str, ...]) -> None:
    """Name the states of a converted checkpoint as they were."""
    own = dict(zip(ADAM, pair, strict=False))
    for name in ADAM:
        for file in [*(converted / "zero").rglob(f"{name}.pt")]:
            if name in own:
                file.rename(file.with_name(f"{own[name]}.pt~"))  # RMSprop's square_avg could meet another's name
            else:
                file.unlink()
    for file in [*(converted / "zero").rglob("*.pt~")]:
        file.rename(file.with_suffix(".pt"))


def gather(converted: Path, more: Path, pair: tuple[str, ...]) -> None:
    """Move the states of ``pair`` from one converted checkpoint to the other."""
    for name in pair:
        for file in [*(more / "zero").rglob(f"{name}.pt")]:
            file.rename(converted / file.relative_to(more))


def _load(file: Path) -> dict[str, Any]:
    shard: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=False)
    return shard


def _groups(shard: dict[str, Any]) -> Iterator[tuple[dict[str, Any], tuple[int, int]]]:
    """For each group of a shard at stage 1 or 2, its state and the length of its part, without and with what fills up
    the last rank's."""
    own = shard["optimizer_state_dict"]
    for number, parameters in enumerate(own["single_partition_of_fp32_groups"]):
        length = parameters.numel()
        yield own["base_optimizer_state"]["state"].get(number, {}), (length, length + own["group_paddings"][number])
