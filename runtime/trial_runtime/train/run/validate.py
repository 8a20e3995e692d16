"""``ds-train --validate``: validate a checkpoint, and leave nothing behind but what is printed."""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trial_runtime._run_metrics import read_reports
from trial_runtime._storage.urls import CheckpointStorage
from trial_runtime.train.config.errors import ConfigError
from trial_runtime.train.config.run_plan import RunPlan


def validating_plan(plan: RunPlan) -> RunPlan:
    """Return the plan of a run that validates its first checkpoint and ends, without trackers or other storage."""
    fit = dataclasses.replace(plan.fit, validate_only=True, profiled_batches=None, early_stopping=None)
    return dataclasses.replace(plan, fit=fit, storage=CheckpointStorage(), log_with=(), max_restarts=0)


def validate(options: argparse.Namespace, launch: Callable[[], int]) -> int:
    """Run the validation in a directory that is removed afterwards, and print the metrics.

    Args:
        options: of ``ds-train``; the run directory is set.
        launch: runs it.

    Returns:
        0 validated; 1 the trial failed; 2 it cannot be run.

    Raises:
        ConfigError: another option contradicts.
    """
    if options.run_dir is not None or options.resume or options.latest_checkpoint is not None:
        raise ConfigError(
            "--validate: names the checkpoint; leave --run-dir, --resume and --latest-checkpoint out, or write "
            "--validate RUN_DIRECTORY for the newest one of a run"
        )
    options.latest_checkpoint = options.validate
    folder = Path(tempfile.mkdtemp(prefix="ds-train-validate-"))
    options.run_dir = folder / "run"
    try:
        code = launch()
        if code != 0:
            return code
        reports = read_reports(options.run_dir / "metrics.jsonl", "validation")
        if not reports:
            raise ConfigError("--validate: nothing was validated; the entrypoint must train a trial with Trainer.fit()")
        _print(options, reports[-1].batches, reports[-1].metrics)
        return 0
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _print(options: argparse.Namespace, batches: int, metrics: dict[str, Any]) -> None:
    measured = {name: value for name, value in metrics.items() if name not in ("batches", "epochs")}
    if options.format == "json":
        print(json.dumps({"checkpoint": options.validate, "batches": batches, "metrics": measured}, indent=2))
        return
    width = max(map(len, measured), default=0)
    for name, value in measured.items():
        print(f"{name:{width}}  {value:.6g}" if isinstance(value, float) else f"{name:{width}}  {value}")
