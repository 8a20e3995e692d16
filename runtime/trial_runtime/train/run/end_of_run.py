"""What ``ds-train`` prints when a run has ended well."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trial_runtime.train.history.records import read_run
from trial_runtime.train.run.paths import relative_path


def end_of_run(path: Path) -> Iterator[str]:
    """Yield lines: what was trained in which time, the best validation and its checkpoint, what to do next."""
    run, shown = read_run(path), relative_path(path)
    if run is None:
        return
    yield f"finished: {run.batches:,} batches; metrics: {shown / 'metrics.jsonl'}"
    best, checkpoint = run.best(), run.best_checkpoint()
    if best is not None:
        yield f"best: {run.metric} {best.number(run.metric or ''):.6g} at {best.batches:,} batches"
    if checkpoint is not None:
        kind = "its checkpoint" if best is not None and checkpoint.batches == best.batches else "checkpoint"
        yield f"{kind}: {relative_path(checkpoint.path)}; weights: ds-train runs export {shown}"
    yield f"curves: tensorboard --logdir {shown}"
