"""Lengths and periods counted in batches.

``PyTorchTrial`` counted every batch of the loader; ``DeepSpeedTrial`` counts one batch for each optimizer step. With
``aggregation_frequency: K`` every length in batches divides by K. Epochs stay, and so do records: the runtime divides
those by ``global_batch_size`` times K.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ds_migrate.experiment.yaml_nodes import Node

_INTEGER = re.compile(r"\+?[0-9](?:_?[0-9])*")

_FIELDS: tuple[tuple[str, ...], ...] = (
    ("searcher", "max_length", "batches"),
    ("min_validation_period", "batches"),
    ("min_checkpoint_period", "batches"),
    ("scheduling_unit",),
    ("profiling", "begin_on_batch"),
    ("profiling", "end_after_batch"),
)
# Fields of old releases whose unit is a "step" of batches_per_step batches: no rule divides them safely.
_OLD: tuple[tuple[str, ...], ...] = (
    ("batches_per_step",),
    ("searcher", "max_steps"),
    ("searcher", "target_trial_steps"),
    ("searcher", "step_budget"),
)


@dataclass(frozen=True)
class Length:
    """One length in batches: where it stands, its value, and what it becomes for K."""

    path: tuple[str, ...]
    node: Node
    batches: int

    @property
    def name(self) -> str:
        return ".".join(self.path)

    def steps(self, k: int) -> int:
        """Optimizer steps. What does not divide is rounded down, but never to nothing.

        Training then ends after exactly the optimizer steps of the original, which never applied the gradients of a
        last incomplete group; a validation or checkpoint never comes later than it did.
        """
        if self.path[-1] == "end_after_batch":
            return -(-self.batches // k)
        return max(self.batches // k, 1) if self.path[-1] != "begin_on_batch" else self.batches // k


class NotALengthError(Exception):
    """A length that has to be divided is no plain whole number, or does not stand where it can be edited."""

    def __init__(self, node: Node, path: tuple[str, ...], reason: str) -> None:
        super().__init__(reason)
        self.node, self.path, self.reason = node, path, reason


def integer(node: Node) -> int | None:
    """The whole number that a plain scalar holds."""
    node = node.real
    if node.kind != "scalar" or node.style or node.tag is not None or _INTEGER.fullmatch(node.value) is None:
        return None
    return int(node.value)


def in_batches(root: Node) -> list[Length]:
    """Every length in batches of a config, 0 ("never" or "always") left out.

    Raises:
        NotALengthError: one is given in a way that cannot be divided in place.
    """
    fields = list(_FIELDS)
    searcher = root.own("searcher")
    metric = None if searcher is None else searcher.real.own("time_metric")
    if metric is not None and metric.real.value == "batches":
        fields.append(("searcher", "max_time"))
    found: list[Length] = []
    for path in fields:
        node = _at(root, path)
        if node is None or (node.real.kind == "scalar" and node.real.is_null):
            continue  # null is "no length", as a missing field is
        batches = integer(node)
        if batches is None:
            raise NotALengthError(node, path, "is not a whole number")
        if batches:
            found.append(Length(path, node, batches))
    return found


def unitless(root: Node) -> Iterator[tuple[tuple[str, ...], Node]]:
    """Lengths whose unit is not known to be batches: fields of old releases, and bare numbers."""
    for path in (*_OLD, ("searcher", "max_length"), ("min_validation_period",), ("min_checkpoint_period",)):
        try:
            node = _at(root, path)
        except NotALengthError:
            continue
        if node is not None and node.real.kind == "scalar" and not node.real.is_null:
            yield path, node


def _at(root: Node, path: tuple[str, ...]) -> Node | None:
    node = root
    for i, key in enumerate(path):
        mapping = node.real
        if mapping.kind != "mapping":
            return None
        if mapping.merged(key):
            raise NotALengthError(mapping, path[: i + 1], "comes from a merge key (<<)")
        below = mapping.own(key)
        if below is None:
            return None
        node = below
    return node
