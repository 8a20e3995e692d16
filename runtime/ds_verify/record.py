"""The record of one training run: every metric at its step, learning rates, weights and buffers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

Kind = Literal["setup", "initial", "training", "gradient", "window", "lr", "norm", "validation", "saved", "state"]


@dataclass(frozen=True)
class Key:
    """The key of one recorded value.

    kind: "setup" (a fact of the run), "initial" (a parameter or buffer before the first step), "training" (one
        micro-batch, or a step of a script), "gradient" (the norm of the gradients that a script's optimizers get),
        "window" (means and reducers over a reporting window), "lr" (options of a step such as learning rates,
        smallest first), "norm" (the norm of a module's parameters or buffers), "validation" (in a script: its
        evaluations), "saved" (in a script: what it saves), or "state" (a final parameter or buffer).
    step: micro-batches trained when the value was taken, counted from 1.
    name: the metric's name, or the tensor's name below its trial ("model.0.weight").
    rank: metrics are the chief's (0); every rank has its own copy of the weights.
    """

    kind: Kind
    step: int
    name: str
    rank: int = 0

    def __str__(self) -> str:
        where = f" on rank {self.rank}" if self.rank else ""
        kind = {"norm": "norm of ", "lr": "", "gradient": ""}.get(self.kind, f"{self.kind} ")
        return f"{kind}{self.name}{where}"


@dataclass
class Record:
    """The values of one run, by key; arrays of any numeric type, scalars as arrays of no dimension.

    aliases: other names of a tensor that is recorded once, as ``{"engine.0.weight": "model.0.weight"}``.
    """

    values: dict[Key, np.ndarray[Any, Any]] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)

    def add(self, key: Key, value: object) -> None:
        """Add `value`; a key recorded twice is an error, since one of the two would go unseen."""
        if key in self.values:
            raise ValueError(f"{key} at step {key.step} is recorded twice")
        array = np.array(value)
        if array.dtype.kind not in "biuf":
            raise TypeError(f"{key} at step {key.step} is not numeric: {value!r}")
        self.values[key] = array

    def add_metrics(self, kind: Kind, step: int, metrics: Mapping[str, object]) -> None:
        """Add each metric under its name."""
        for name, value in metrics.items():
            self.add(Key(kind, step, name), value)

    def find(self, key: Key) -> np.ndarray[Any, Any] | None:
        """Return the value of `key`, also where this run recorded it under another name of the same tensor."""
        found = self.values.get(key)
        if found is None and key.name in self.aliases:
            found = self.values.get(Key(key.kind, key.step, self.aliases[key.name], key.rank))
        return found

    def save(self, path: Path) -> None:
        """Write a line of JSON that lists the values, and their bytes; the file appears whole or not at all."""
        values = [(k.kind, k.step, k.name, k.rank, v.dtype.str, v.shape) for k, v in self.values.items()]
        unfinished = path.with_suffix(".unfinished")
        with unfinished.open("wb") as file:
            file.write(json.dumps([self.aliases, values]).encode() + b"\n")
            for value in self.values.values():
                file.write(value.tobytes())
        unfinished.replace(path)

    @classmethod
    def load(cls, paths: Iterable[Path]) -> Record:
        """Read one run back: one file for each rank."""
        record = cls()
        for path in paths:
            with path.open("rb") as file:
                aliases, values = json.loads(file.readline())
                record.aliases.update(aliases)
                for kind, step, name, rank, kind_of_number, shape in values:
                    dtype = np.dtype(kind_of_number)
                    content = file.read(dtype.itemsize * math.prod(shape))
                    record.add(Key(kind, step, name, rank), np.ndarray(shape, dtype, content))
        return record
