"""``save_trial_best`` and ``save_trial_latest``: which checkpoints stay when a run has ended well.

As on a cluster, nothing is removed while a run may still need to go on from it.
"""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

from trial_runtime._cluster_info import ClusterInfo, newest_checkpoint

_MANIFEST = "manifest.json"


def remove_superseded(info: ClusterInfo) -> list[str]:
    """Remove the run's checkpoints that are neither among the best nor among the latest to keep.

    The newest one always stays. Without limits in the config all stay. The best are judged by the searcher's metric in
    the run's ``metrics.jsonl``; a checkpoint that was not validated is none of them.

    Returns:
        The names of the removed checkpoints, oldest first.
    """
    best, latest = info.run.save_trial_best, info.run.save_trial_latest
    if best is None and latest is None:
        return []
    directory = Path(info.run.checkpoint_directory)
    found = sorted(
        (_batches(folder), folder.stat().st_mtime, folder)
        for folder in directory.iterdir()
        if (folder / _MANIFEST).is_file()
    )
    metrics = _metrics(info)
    sign = 1 if info.run.smaller_is_better else -1
    # Of equally good ones the earlier, as the policy "best" keeps the first.
    judged = sorted((sign * metrics[batches], batches, folder) for batches, _, folder in found if batches in metrics)
    kept = {folder for *_, folder in judged[: best or 0]}
    kept.update(folder for *_, folder in found[len(found) - (latest or 0) :])
    newest = newest_checkpoint(directory)
    removed = [folder for *_, folder in found if folder not in kept and str(folder) != newest]
    for folder in removed:
        (folder / _MANIFEST).unlink()  # first: without it, what is left of the folder counts as no checkpoint
        shutil.rmtree(folder)
    return [folder.name for folder in removed]


def _batches(checkpoint: Path) -> int:
    manifest = json.loads((checkpoint / _MANIFEST).read_text(encoding="utf-8"))
    return int(manifest["progress"]["batches"])


def _metrics(info: ClusterInfo) -> dict[int, float]:
    """The searcher's metric after each validation, by batches trained; after a restart the later report counts."""
    found: dict[int, float] = {}
    if info.run.searcher_metric is None or not info.run.metrics_path.is_file():
        return found
    for line in info.run.metrics_path.read_text(encoding="utf-8").splitlines():
        try:
            report: dict[str, Any] = json.loads(line)
        except ValueError:  # the last line of a run that was killed
            continue
        value = report["metrics"].get(info.run.searcher_metric)
        if report["group"] == "validation" and isinstance(value, int | float) and not math.isnan(value):
            found[int(report["steps_completed"])] = float(value)
    return found
