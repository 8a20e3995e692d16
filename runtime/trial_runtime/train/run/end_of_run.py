"""Output of ``ds-train`` at the end of a run that succeeded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trial_runtime._run_metrics import clock
from trial_runtime.train.history.records import Run, find_runs, read_run
from trial_runtime.train.run.paths import relative_path


def end_of_run(path: Path, seconds: float | None = None) -> Iterator[str]:
    """Yield lines: what was trained in which time, the best validation and its checkpoint, what to do next.

    Args:
        path: the run directory.
        seconds: how long this start of it took.
    """
    run, shown = read_run(path), relative_path(path)
    if run is None:
        return
    duration = "" if seconds is None else f" in {clock(seconds)}"
    unit = "batch" if run.batches == 1 else "batches"
    trained = f"{run.batches:,} {unit}{duration}; metrics: {shown / 'metrics.jsonl'}"
    if (since := run.diverged_at) is not None:
        yield f"finished, but training diverged at batch {since:,} and never recovered: {trained}"
    else:
        yield f"finished: {trained}"
    best, checkpoint = run.best(), run.best_checkpoint()
    if since is not None and checkpoint is not None and checkpoint.batches >= since:
        yield f"its best checkpoint, {checkpoint.path.name}, was saved after that: its weights are of no use"
        best = checkpoint = None
    if best is not None:
        yield f"best: {run.metric} {best.number(run.metric or ''):.6g} at {best.batches:,} batches"
    if checkpoint is not None:
        kind = "its checkpoint" if best is not None and checkpoint.batches == best.batches else "checkpoint"
        yield f"{kind}: {relative_path(checkpoint.path)}; weights: ds-train runs export {shown}"
    yield f"curves: tensorboard --logdir {shown}"
    if (former := _former_run(run)) is not None:
        yield f"compare: ds-train runs compare {relative_path(former)} {shown}"


def _former_run(run: Run) -> Path | None:
    """Return the run of the same name before this one, in the same folder; None where it has no validation."""
    name, _, number = run.path.name.rpartition("-")
    if not number.isdigit():
        return None
    former = [other.path for other in find_runs(run.path.parent) if other.path.name.rpartition("-")[0] == name]
    earlier = [path for path in former if path.name.rpartition("-")[2].isdigit()]
    before = [path for path in earlier if int(path.name.rpartition("-")[2]) < int(number)]
    newest = max(before, key=lambda path: int(path.name.rpartition("-")[2]), default=None)
    found = None if newest is None else read_run(newest)
    return newest if found is not None and found.validations else None
