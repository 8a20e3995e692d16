"""States of any elementwise optimizer in DeepSpeed's universal format.

Its converter knows two states of an optimizer, by the names that Adam gives them; so does its loader at ZeRO stage 3,
while at stages 1 and 2 that takes what it finds. So the states of other optimizers pass the converter under
Adam's names, two at a time, and get their names back afterwards. Single numbers that an optimizer keeps, such as
NAdam's ``mu_product``, are the same on all ranks; they bypass it.
"""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import torch

from trial_runtime.pytorch._checkpoints import restricted_load

ADAM = ("exp_avg", "exp_avg_sq")
_SHARDS = "*_optim_states.pt"


class UnknownStateError(ValueError):
    """A state of an optimizer that is neither one number for each number of a parameter nor one for all."""


@dataclasses.dataclass(frozen=True)
class OptimizerStates:
    """States that an optimizer keeps.

    Attributes:
        names: those of states with one number for each number of a parameter.
        numbers: single numbers by name, the step among them, for each parameter group.
    """

    names: tuple[str, ...]
    numbers: list[dict[str, Any]]

    @property
    def is_adam_like(self) -> bool:
        """Return whether the converter knows all of them."""
        return self.names == ADAM and all(group.keys() <= {"step"} for group in self.numbers)

    @property
    def pairs(self) -> list[tuple[str, ...]]:
        """Return the names in pairs, each passes the converter as Adam's two; at least one pair, which may be empty."""
        return [self.names[start : start + 2] for start in range(0, len(self.names), 2)] or [()]


def read_states(folder: Path) -> OptimizerStates:
    """Return what the optimizer of an engine's checkpoint keeps.

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
    return OptimizerStates(tuple(sorted(names)), found[0] if found else [])


def alias_states(folder: Path, aliased: Path, pair: tuple[str, ...]) -> None:
    """Make ``aliased`` a copy of an engine's checkpoint with the states of ``pair`` under Adam's names, and no others.

    A state that does not exist yet (no step was made) is zeros, as optimizers make it.
    """
    aliased.mkdir(parents=True)
    own = dict(zip(ADAM, pair, strict=False))
    for file in folder.iterdir():
        if not file.match(_SHARDS):
            (aliased / file.name).symlink_to(file.absolute())
            continue
        shard = _load(file)
        states, lengths, _ = _parts(shard)
        for number, length in enumerate(lengths):
            state = states.get(number, {})
            zeros = torch.zeros(max(length))
            states[number] = {name: state.get(own.get(name, ""), zeros) for name in ADAM}
            states[number]["step"] = state.get("step", 0)
        torch.save(shard, aliased / file.name)


def restore_names(converted: Path, pair: tuple[str, ...]) -> None:
    """Give the states of a converted checkpoint their names back."""
    own = dict(zip(ADAM, pair, strict=False))
    for name in ADAM:
        for file in [*(converted / "zero").rglob(f"{name}.pt")]:
            if name in own:
                file.rename(file.with_name(f"{own[name]}.pt~"))  # RMSprop's square_avg could meet another's name
            else:
                file.unlink()
    for file in [*(converted / "zero").rglob("*.pt~")]:
        file.rename(file.with_suffix(".pt"))


def move_states(converted: Path, more: Path, pair: tuple[str, ...]) -> None:
    """Move the states of ``pair`` from one converted checkpoint to the other."""
    for name in pair:
        for file in [*(more / "zero").rglob(f"{name}.pt")]:
            file.rename(converted / file.relative_to(more))


def fill_placeholders(converted: Path) -> None:
    """Put placeholders in the place of Adam's states that do not exist, for the loader of stage 3."""
    for file in [*(converted / "zero").rglob("fp32.pt")]:
        for name in ADAM:
            if not (state := file.with_name(f"{name}.pt")).exists():
                state.symlink_to(file.name)


def _load(file: Path) -> dict[str, Any]:
    shard: dict[str, Any] = restricted_load.read(file)
    return shard


def _parts(shard: dict[str, Any]) -> tuple[dict[int, dict[str, Any]], list[tuple[int, int]], list[list[int]]]:
    """Return the states of a shard's flat parts, their lengths without and with the last rank's padding, and the parts
    of each parameter group: one, at stage 3 several for a large group."""
    own = shard["optimizer_state_dict"]
    if "fp32_flat_groups" in own:  # stage 3
        inner, flats, paddings = own["optimizer_state_dict"], own["fp32_flat_groups"], itertools.repeat(0)
    else:
        inner, flats, paddings = (
            own["base_optimizer_state"], own["single_partition_of_fp32_groups"], own["group_paddings"],
        )  # fmt: skip
    lengths = [(flat.numel(), flat.numel() + padding) for flat, padding in zip(flats, paddings, strict=False)]
    return inner["state"], lengths, [group["params"] for group in inner["param_groups"]]
