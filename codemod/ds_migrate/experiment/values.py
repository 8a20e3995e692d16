"""Single values of an experiment config that the conversion of a trial's source needs."""

from __future__ import annotations

from collections.abc import Sequence

from ds_migrate.experiment.accumulation import Accumulation
from ds_migrate.experiment.lengths import integer
from ds_migrate.experiment.model import TrialFacts
from ds_migrate.experiment.yaml_edits import RefusedError
from ds_migrate.experiment.yaml_nodes import Node, is_string

_CONSTANTS: dict[str, object] = {"true": True, "false": False, "null": None, "~": None, "": None}


def accumulation(root: Node, trials: Sequence[TrialFacts], platform_starts_trial: bool) -> tuple[int, bool]:
    """Return batches per optimizer step, and whether gradients are averaged over them.

    Where that cannot be determined: (1, True).
    """
    try:
        found = Accumulation.read(root, trials, platform_starts_trial)
    except RefusedError:
        return 1, True
    return found.k, found.averages


def slots(root: Node) -> int | None:
    """Return ``resources.slots_per_trial``."""
    resources = root.own("resources")
    given = None if resources is None or resources.real.kind != "mapping" else resources.real.own("slots_per_trial")
    return None if given is None else integer(given)


def hparams(root: Node) -> dict[str, tuple[object, ...]]:
    """Return by name the constant as a tuple of one; an empty tuple for a search space or a nested group."""
    given = root.own("hyperparameters")
    found: dict[str, tuple[object, ...]] = {}
    _collect(None if given is None else given.real, found)
    return found


def _collect(mapping: Node | None, found: dict[str, tuple[object, ...]]) -> None:
    if mapping is None or mapping.kind != "mapping":
        return
    for key, value in mapping.pairs:
        if key.value == "<<":
            bases = value.real.items if value.real.kind == "sequence" else [value]
            for base in bases:
                merged: dict[str, tuple[object, ...]] = {}
                _collect(base.real, merged)
                for name, constant in merged.items():
                    found.setdefault(name, constant)
        else:
            found[key.value] = _constant(value.real)


def _constant(node: Node) -> tuple[object, ...]:
    if node.kind == "scalar":
        return (_value(node),)
    kind = node.own("type") if node.kind == "mapping" else None
    given = node.own("val") if kind is not None and kind.real.value == "const" else None
    return (_value(given.real),) if given is not None and given.real.kind == "scalar" else ()


def _value(node: Node) -> object:
    if node.style or node.tag is not None:
        return node.value
    if node.value.lower() in _CONSTANTS:
        return _CONSTANTS[node.value.lower()]
    if is_string(node.value):
        return node.value
    try:
        return int(node.value)
    except ValueError:
        pass
    try:
        return float(node.value)
    except ValueError:
        return node.value
