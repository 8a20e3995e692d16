"""Records of runs in their directories, read without torch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from trial_runtime._cluster_info import CLUSTER_INFO_FILE, ClusterInfo, newest_checkpoint
from trial_runtime._run_metrics import Report, best_report, read_reports
from trial_runtime._run_record import RUN_FILE, read_object, read_record, read_small

SEARCH_FILE = "search.json"


@dataclass(frozen=True)
class Checkpoint:
    """A committed checkpoint.

    Attributes:
        batches: trained when it was saved.
        size: bytes on the disk.
    """

    path: Path
    batches: int
    size: int


@dataclass(frozen=True)
class Run:
    """One run.

    Attributes:
        path: its directory.
        status: ``running``, ``completed``, ``failed`` or ``stopped``; a run that was killed remains ``running``.
        info: its description for the ranks; None where no rank was started yet.
        diverged_at: the first batch of the last ones, whose loss was never a number again; None: it was one at the end.
    """

    path: Path
    status: str
    seed: int
    info: ClusterInfo | None
    diverged_at: int | None = None

    @property
    def metric(self) -> str | None:
        """Return the searcher's metric."""
        return None if self.info is None else self.info.run.searcher_metric

    @property
    def smaller_is_better(self) -> bool:
        """Return whether a smaller metric is better."""
        return self.info is None or self.info.run.smaller_is_better

    @property
    def hparams(self) -> dict[str, Any]:
        """Return the hyperparameters by dotted name."""
        return {} if self.info is None else flattened(self.info.trial.hparams)

    @property
    def metrics_path(self) -> Path:
        """Return the file of its metrics."""
        return self.path / "metrics.jsonl"

    @cached_property
    def reports(self) -> list[Report]:
        """Return all reports of metrics, in the order of writing."""
        return read_reports(self.metrics_path)

    @property
    def validations(self) -> list[Report]:
        """Return the validations, in the order of writing."""
        return [report for report in self.reports if report.group == "validation"]

    @property
    def batches(self) -> int:
        """Return how many batches were trained."""
        return max((report.batches for report in self.reports), default=0)

    def best(self, metric: str | None = None) -> Report | None:
        """Return the validation with the best value of ``metric``, the searcher's by default; None without any."""
        name = metric or self.metric
        return None if name is None else best_report(self.validations, name, self.smaller_is_better)

    @property
    def checkpoint_directory(self) -> Path:
        """Return where its checkpoints are, also after the run directory was moved or copied."""
        own = (self.path / "checkpoints").absolute()
        return own if self.info is None or own.is_dir() else Path(self.info.run.checkpoint_directory)

    @cached_property
    def checkpoints(self) -> list[Checkpoint]:
        """Return the checkpoints on this machine, by batches."""
        found = []
        for manifest in self.checkpoint_directory.glob("*/manifest.json"):
            try:
                batches = int(read_object(manifest)["progress"]["batches"])
            except (OSError, ValueError, KeyError, TypeError, OverflowError):
                continue
            size = sum(file.stat().st_size for file in manifest.parent.rglob("*") if file.is_file())
            found.append(Checkpoint(manifest.parent, batches, size))
        return sorted(found, key=lambda checkpoint: (checkpoint.batches, checkpoint.path.name))

    def best_checkpoint(self, metric: str | None = None) -> Checkpoint | None:
        """Return the checkpoint of the best validation; the newest one where none was validated; None without any."""
        values = {report.batches: _finite(report, metric or self.metric or "") for report in self.validations}
        sign = 1 if self.smaller_is_better else -1
        judged = [
            (sign * value, checkpoint)
            for checkpoint in self.checkpoints
            if (value := values.get(checkpoint.batches)) is not None
        ]
        if judged:
            return min(judged, key=lambda pair: pair[0])[1]
        newest = None if self.info is None else newest_checkpoint(self.checkpoint_directory)
        return next((each for each in self.checkpoints if str(each.path) == newest), None)

    @property
    def started(self) -> float:
        """Return when the run was made, as a file time."""
        return _modified(self.path / "config.yaml")

    @property
    def ended(self) -> float:
        """Return when its status last changed or it last reported, as a file time."""
        return max(_modified(self.path / RUN_FILE), _modified(self.path / "metrics.jsonl"))


def read_run(path: Path) -> Run | None:
    """Return the run in the directory ``path``; None where there is none."""
    try:
        fields = read_record(path)
        status, seed = str(fields["status"]), int(fields["seed"])
        diverged_at = None if fields.get("diverged_at") is None else int(fields["diverged_at"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None
    try:
        info = ClusterInfo.from_json(read_small(path / CLUSTER_INFO_FILE))
    except (OSError, ValueError):
        info = None
    return Run(path, status, seed, info, diverged_at)


def find_runs(base: Path) -> Iterator[Run]:
    """Yield the runs in ``base`` and, for searches, their trials; by number and name."""
    if (run := read_run(base)) is not None:
        yield run
        return
    folders = sorted((path for path in base.glob("*") if path.is_dir()), key=_natural)
    for folder in folders:
        if (folder / SEARCH_FILE).is_file():
            yield from find_runs(folder / "trials")
        elif (run := read_run(folder)) is not None:
            yield run


def flattened(hparams: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return hyperparameters by dotted name."""
    flat: dict[str, Any] = {}
    for name, value in hparams.items():
        if isinstance(value, dict) and value:
            flat.update(flattened(value, f"{prefix}{name}."))
        else:
            flat[prefix + name] = value
    return flat


def _finite(report: Report, metric: str) -> float | None:
    value = report.number(metric)
    return None if value is None or math.isnan(value) else value


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _natural(path: Path) -> tuple[str, int]:
    name, _, number = path.name.rpartition("-")
    return (name, int(number)) if number.isdigit() else (path.name, 0)
