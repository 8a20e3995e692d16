"""``save_trial_best`` and ``save_trial_latest``: which checkpoints stay when a run has ended well.

As on a cluster, nothing is removed while a run may still resume from it.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Collection
from pathlib import Path

from trial_runtime._cluster_info import ClusterInfo, newest_checkpoint
from trial_runtime._run_metrics import validation_values
from trial_runtime._run_record import read_object
from trial_runtime._storage.remote import call, with_environment_options

_MANIFEST = "manifest.json"
logger = logging.getLogger("trial_runtime.train")


def remove_superseded(info: ClusterInfo, protected: Collection[str] = ()) -> list[str]:
    """Remove the run's checkpoints that are neither among the best nor among the latest to keep.

    They go from the checkpoint directory and from the remote storage. The newest one always stays. Without limits in
    the config all stay. The best are judged by the searcher's metric in the run's ``metrics.jsonl``; a checkpoint that
    was not validated is none of them. Where no validation reported that metric, the best are not known, and all stay.

    Args:
        info: the run.
        protected: names of checkpoints that stay in any case.

    Returns:
        The names of the removed checkpoints, oldest first.

    Raises:
        CheckpointStorageError: the remote storage does not answer.
    """
    best, latest = info.run.save_trial_best, info.run.save_trial_latest
    if best is None and latest is None:
        return []
    if best and not validation_values(info.run.metrics_path, info.run.searcher_metric):
        logger.warning(
            f"All checkpoints stay: save_trial_best is {best}, but no validation reported the metric "
            f"{info.run.searcher_metric!r} (searcher.metric) that decides which are best."
        )
        return []
    directory = Path(info.run.checkpoint_directory)
    batches = checkpoints_in(directory, info.run.storage)
    storage = None if info.run.storage is None else with_environment_options(info.run.storage)
    there: dict[str, int] = {} if storage is None else call(storage, "batches")
    found = sorted(batches, key=batches.__getitem__)
    judged = [name for _, name in judged_checkpoints(info)]
    kept = {*protected, *judged[: best or 0], *found[len(found) - (latest or 0) :], _newest(directory, found)}
    removed = [name for name in found if name not in kept]
    for name in removed:
        if storage is not None and name in there:
            call(storage, "remove", name=name)
        if (directory / name / _MANIFEST).exists():
            (directory / name / _MANIFEST).unlink()  # first: without it, the rest counts as no checkpoint
            shutil.rmtree(directory / name)
    return removed


def judged_checkpoints(info: ClusterInfo) -> list[tuple[float, str]]:
    """Return the run's validated checkpoints, the best first: the searcher's metric, smaller is better, and the name.

    Of equally good ones the earlier, as the policy "best" keeps the first.
    """
    metrics = validation_values(info.run.metrics_path, info.run.searcher_metric)
    batches = checkpoints_in(Path(info.run.checkpoint_directory), info.run.storage)
    sign = 1 if info.run.smaller_is_better else -1
    validated = [name for name in sorted(batches, key=batches.__getitem__) if batches[name] in metrics]
    return sorted(((sign * metrics[batches[name]], name) for name in validated), key=lambda pair: pair[0])


def checkpoints_in(directory: Path, storage: str | None) -> dict[str, int]:
    """Return the batches of each checkpoint that is in a directory or in a remote storage, by name.

    They are in the order of writing; of those at the same batch (after a restart) those that are here are later.

    Args:
        directory: the checkpoint directory of a run.
        storage: URL of the remote storage; None without one.

    Raises:
        CheckpointStorageError: the remote storage does not answer.
    """
    there: dict[str, int] = {} if storage is None else call(with_environment_options(storage), "batches")
    here = [file.parent for file in directory.glob(f"*/{_MANIFEST}") if not file.parent.name.startswith(".")]
    here.sort(key=lambda folder: folder.stat().st_mtime)
    counted = {folder.name: batches for folder in here if (batches := _batches(folder)) is not None}
    return {**{name: there[name] for name in sorted(set(there) - set(counted))}, **counted}


def _newest(directory: Path, found: list[str]) -> str | None:
    newest = newest_checkpoint(directory)
    if newest is not None:
        return Path(newest).name
    return found[-1] if found else None


def _batches(checkpoint: Path) -> int | None:
    """Return the batches of a checkpoint; None where its manifest is damaged."""
    try:
        return int(read_object(checkpoint / _MANIFEST)["progress"]["batches"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None
