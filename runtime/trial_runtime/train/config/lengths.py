"""Lengths of an experiment config, in any unit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trial_runtime._cluster_info import Length
from trial_runtime.train.config import hparams
from trial_runtime.train.config.errors import Problems, Section, as_integer


def assigned_length(length: Mapping[str, int], problems: Problems) -> Section:
    """Return the section that holds a length which a search assigns."""
    return Section({"max_length": length}, "assignment", problems)


class Lengths:
    """Reader of lengths in any unit; records become batches, which takes the batch size."""

    def __init__(self, values: Mapping[str, Any], context: Path) -> None:
        self._batch_size = values.get("global_batch_size")
        self._steps = hparams.accumulation_steps(values) or _steps_in_file(values.get("deepspeed_config"), context) or 1

    def read(self, section: Section, name: str, bare: bool = False) -> Length | None:
        """Read the length in the field ``name``; None when it is absent or 0. ``bare``: a number alone means
        batches."""
        value = section.get(name)
        if value is None:
            return None
        if bare and as_integer(value) is not None:
            value = {"batches": value}
        allowed = f"write one of {{batches: N}}, {{epochs: N}} and {{records: N}}{', or N batches' if bare else ''}"
        if not isinstance(value, Mapping) or len(value) != 1:
            section.reject(name, allowed)
            return None
        unit, count = next(iter(value.items()))
        number = as_integer(count)
        if unit not in ("batches", "epochs", "records") or number is None or number < 0:
            section.reject(name, f"{allowed}, where N is a whole number")
            return None
        if number == 0:
            if bare:
                section.reject(name, "write for how long to train, e.g. {epochs: 10}")
            return None
        if unit != "records":
            return Length(number, "batches" if unit == "batches" else "epochs")
        if type(self._batch_size) is not int or self._batch_size < 1:
            section.reject(name, "records need hyperparameters.global_batch_size to be turned into batches")
            return None
        return Length(max(1, number // (self._batch_size * self._steps)), "batches")


def _steps_in_file(config: object, context: Path) -> int | None:
    """Return K from the DeepSpeed configuration file that the hyperparameter names; None without it."""
    if not isinstance(config, str):
        return None
    try:
        content = json.loads((context / config).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None  # the trial reports what is wrong with it
    return hparams.accumulation_steps({"deepspeed_config": content})
