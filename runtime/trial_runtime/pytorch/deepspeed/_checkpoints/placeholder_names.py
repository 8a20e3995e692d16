"""States of any elementwise optimizer in DeepSpeed's universal format.

Its converter knows two states of an optimizer, by the names that Adam gives them; so does its loader at ZeRO stage 3,
while at stages 1 and 2 that takes what it finds. So the states of other optimizers go through the converter under
Adam's names, two at a time, and get their own back then. Single numbers that an optimizer keeps, such as NAdam's
``mu_product``, are the same on all ranks; they go past it.
"""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import torch

ADAM = ("exp_avg", "exp_avg_sq")
_SHARDS = "*_optim_states.pt"


class UnknownStateError(ValueError):
    """An optimizer keeps something that is neither one number for each number of a parameter nor one for all."""


@dataclasses.dataclass(frozen=True)
class Kept:
    """What an optimizer keeps.

    Attributes:
        names: of states with one number for each number of a parameter.
        numbers: single numbers by name, the step among them, for each parameter group.
    """

    names: tuple[str, ...]
    numbers: list[dict[str, Any]]

    @property
    def is_adams(self) -> bool:
        """Whether the converter knows all of it."""
        return self.names == ADAM and all(group.keys() <= {"step"} for group in self.numbers)

    @property
    def pairs(self) -> list[tuple[str, ...]]:
        """The names in pairs to lend Adam's names to; at least one pair, which may be empty."""
        return [self.names[start : start + 2] for start in range(0, len(self.names), 2)] or [()]


def kept_in(folder: Path) -> Kept:
    """What the optimizer of an engine's checkpoint keeps.

    Raises:
        UnknownStateError: a state is no tensor of the shape of the parameters, nor a number that all ranks share.
    """
    names: dict[str, None] = {}
    found: list[list[dict[str, Any]]] = []
    for file in sorted(folder.glob(_SHARDS)):
        numbers: list[dict[str, Any]] = []
        states, lengths, groups = _parts(_load(file))
        for number, length in enumerate(lengths):
            numbers.append({})
            for name, value in states.get(number, {}).items():
                if isinstance(value, torch.Tensor) and value.ndim == 1 and len(value) in length:
                    names[name] = None
                elif isinstance(value, int | float) or (isinstance(value, torch.Tensor) and value.numel() == 1):
                    numbers[-1][name] = value
                elif value is not None:
                    raise UnknownStateError(
                        f"the optimizer's {name!r} is neither one number for each of a parameter's nor one for all"
                    )
        found.append([numbers[group[0]] if group else {} for group in groups])
    for other in found[1:]:
        pairs = zip(found[0], other, strict=True)
        if differing := sorted({name for mine, its in pairs for name in mine if mine[name] != its.get(name)}):
            raise UnknownStateError(f"the ranks had different values of the optimizer's {', '.join(differing)}")
    return Kept(tuple(sorted(names)), found[0] if found else [])


def lend(folder: Path, borrowed: Path, pair: tuple[str, ...]) -> None:
    """Make ``borrowed`` the engine's checkpoint with the states of ``pair`` under Adam's names, and no others. A state
    that is not there yet (no step was made) is zeros, as optimizers make it."""
    borrowed.mkdir(parents=True)
    own = dict(zip(ADAM, pair, strict=False))
    for file in folder.iterdir():
        if not file.match(_SHARDS):
            (borrowed / file.name).symlink_to(file.absolute())
            continue
        shard = _load(file)
        states, lengths, _ = _parts(shard)
        for number, length in enumerate(lengths):
            state = states.get(number, {})
            zeros = torch.zeros(max(length))
            states[number] = {name: state.get(own.get(name, ""), zeros) for name in ADAM}
            states[number]["step"] = state.get("step", 0)
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


def pretend(converted: Path) -> None:
    """Put something in the place of Adam's states that are not there, for the loader of stage 3."""
    for file in [*(converted / "zero").rglob("fp32.pt")]:
        for name in ADAM:
            if not (state := file.with_name(f"{name}.pt")).exists():
                state.symlink_to(file.name)


def _load(file: Path) -> dict[str, Any]:
    shard: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=False)
    return shard


def _parts(shard: dict[str, Any]) -> tuple[dict[int, dict[str, Any]], list[tuple[int, int]], list[list[int]]]:
    """For the flat parts of a shard, one for each parameter group (at stage 3 several for a large one): the states, the
    lengths, without and with what fills up the last rank's, and each group's parts."""
    own = shard["optimizer_state_dict"]
    if "fp32_flat_groups" in own:  # stage 3
        inner, flats, paddings = own["optimizer_state_dict"], own["fp32_flat_groups"], itertools.repeat(0)
    else:
        inner, flats, paddings = (
            own["base_optimizer_state"], own["single_partition_of_fp32_groups"], own["group_paddings"],
        )  # fmt: skip
    lengths = [(flat.numel(), flat.numel() + padding) for flat, padding in zip(flats, paddings, strict=False)]
    return inner["state"], lengths, [group["params"] for group in inner["param_groups"]]
