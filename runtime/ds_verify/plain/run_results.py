"""Results of a script's runs: what varies between two of them, or between ranks, and the two parts of one."""

from __future__ import annotations

import dataclasses
import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ds_verify.compare import gap_between
from ds_verify.record import Key, Record
from ds_verify.runs import TrainingRun
from ds_verify.tolerance import FLOORS, magnitude

_VARIES = 1e-3
"""Initial weights and the first loss of two runs with weights one rounding step apart agree better than this."""


def varying(original: TrainingRun, control: TrainingRun) -> str:
    """Return what two runs of the original begin with otherwise, beyond any rounding; empty where nothing is."""
    if control.failure is not None:
        return f"a second run, whose weights begin one rounding step away, ends with an error: {control.failure.reason}"
    for key, value in original.record.values.items():
        other = control.record.find(key)
        if key.kind != "initial" and (key.kind, key.step) != ("training", 1):
            continue
        if (
            other is None
            or other.shape != value.shape
            or gap_between(value, other) > _VARIES * max(1, magnitude(value))
        ):
            return f"{key} is another one in a second run: give a seed to all that draws random numbers"
    return ""


def parted(training: TrainingRun, ranks: int) -> str:
    """Return the first optimized tensor that does not end the same on all ranks; empty when there is none.

    Averaged gradients keep ranks together. An optimizer that reads more than gradients, or an engine that averages
    none, lets them part, which a comparison of each rank with itself would not show.
    """
    values, last = training.record.values, training.figures["steps"]
    for name in training.figures["optimized"]:
        found = [values.get(Key("state", last, name, rank)) for rank in range(ranks)]
        first = found[0]
        for other in found[1:]:
            if (
                first is None
                or other is None
                or gap_between(first, other) > FLOORS[training.figures["precision"], "cpu"] * max(1.0, magnitude(first))
            ):
                return str(name)
    return ""


def saved_by_several(records: Sequence[Path], shared: str = "") -> str:
    """Return the first file that several ranks have saved, whose records these are; empty where there is none.

    Args:
        shared: the folder of which each rank had a copy that ends in its number: files in these count as one.
    """
    copies = re.compile(re.escape(shared) + r"-rank\d+(?=/)" if shared else r"(?!)")
    files = [path.with_suffix(".json") for path in records]
    figures = [json.loads(file.read_text()) for file in files if file.is_file()]
    counts = Counter(copies.sub(shared, path) for one in figures for path in one["paths"])
    return min((path for path, count in counts.items() if count > 1), default="")


def append_resumed(training: TrainingRun, part: TrainingRun) -> None:
    """Add the second half of a run, which another process resumed."""
    if part.failure is not None or not part.figures:  # of a run that was stopped, as the original did not resume
        training.failure = part.failure
        return
    values = {key: value for key, value in training.record.values.items() if key.kind not in ("setup", "state")}
    resumed = {key: value for key, value in part.record.values.items() if key.kind != "initial"}
    at_resume = {
        dataclasses.replace(key, kind="state", name=f"{key.name}, resumed"): value
        for key, value in part.record.values.items()
        if key.kind == "initial"
    }
    training.record = Record({**values, **at_resume, **resumed}, training.record.aliases)
    before, after = training.figures, part.figures
    training.figures = {
        **after,
        "loaders": before["loaders"],
        "read_loaders": before["read_loaders"],
        "peak_bytes": max(before["peak_bytes"], after["peak_bytes"]),
        "evaluations": before["evaluations"] + after["evaluations"],
        "files": before["files"] + after["files"],
        "passes": before["passes"] + after["passes"],
        "unstepped": [name for name in after["unstepped"] if name in before["unstepped"]],
        "unreached": [name for name in after["unreached"] if name in before["unreached"]],
        "saved_at": before["saved"],
        "resumed": True,
    }
