"""What one training run gave: every metric at its step, and the final parameters and buffers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

Kind = Literal["training", "window", "validation", "state"]


@dataclass(frozen=True)
class Key:
    """Names one recorded value.

    kind: "training" (one micro-batch), "window" (means and reducers over a reporting window), "validation", or "state"
        (a final parameter or buffer).
    step: micro-batches trained when the value was taken, counted from 1.
    name: the metric's name, or the tensor's name below its trial ("model.0.weight").
    rank: metrics are the chief's (0); every rank has its own copy of the state.
    """

    kind: Kind
    step: int
    name: str
    rank: int = 0

    def __str__(self) -> str:
        where = f" on rank {self.rank}" if self.rank else ""
        return f"{self.kind} {self.name}{where}"


@dataclass
class Record:
    """The values of one run, by key; arrays of any numeric type, scalars as arrays of no dimension."""

    values: dict[Key, np.ndarray[Any, Any]] = field(default_factory=dict)

    def add(self, key: Key, value: object) -> None:
        """Keeps `value`; a key recorded twice is an error, since one of the two would go unseen."""
        if key in self.values:
            raise ValueError(f"{key} at step {key.step} is recorded twice")
        array = np.array(value)
        if array.dtype.kind not in "biuf":
            raise TypeError(f"{key} at step {key.step} is not numeric: {value!r}")
        self.values[key] = array

    def add_metrics(self, kind: Kind, step: int, metrics: Mapping[str, object]) -> None:
        for name, value in metrics.items():
            self.add(Key(kind, step, name), value)

    def save(self, path: Path) -> None:
        """Writes one .npz; the file appears whole or not at all."""
        arrays = {f"{k.kind}/{k.step}/{k.rank}/{k.name}": v for k, v in self.values.items()}
        unfinished = path.with_suffix(".tmp.npz")
        np.savez(unfinished, **cast(Any, arrays))
        unfinished.replace(path)

    @classmethod
    def load(cls, paths: Iterable[Path]) -> Record:
        """Reads one run back: one file for each rank."""
        record = cls()
        for path in paths:
            with np.load(path) as arrays:
                for text, value in arrays.items():
                    kind, step, rank, name = text.split("/", 3)
                    record.add(Key(cast(Kind, kind), int(step), name, int(rank)), value)
        return record
