"""The checkpoints of a search's trials when it has ended: none is removed while a trial may still be promoted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from trial_runtime._cluster_info import CLUSTER_INFO_FILE, ClusterInfo
from trial_runtime._storage.urls import CheckpointStorage
from trial_runtime.train.run.retention import judged_checkpoints, remove_superseded
from trial_runtime.train.run.run_directory import checkpoint_places, read_directory


def remove_superseded_of_trials(run_directories: list[Path], storage: CheckpointStorage) -> int:
    """Remove what ``save_experiment_best``, ``save_trial_best`` and ``save_trial_latest`` do not keep.

    Args:
        run_directories: of all trials.
        storage: the fields of the config.

    Returns:
        How many checkpoints were removed.
    """
    if storage.save_trial_best is None and storage.save_trial_latest is None:
        return 0
    infos = []
    for folder in run_directories:
        if (path := folder / CLUSTER_INFO_FILE).is_file():
            info = ClusterInfo.from_json(path.read_text(encoding="utf-8"))
            checkpoints, remote = checkpoint_places(read_directory(folder), storage)
            kept = replace(
                info.run,
                directory=str(folder),
                checkpoint_directory=str(checkpoints),  # not what the file names: they are removed
                storage=remote,
                save_trial_best=storage.save_trial_best,
                save_trial_latest=storage.save_trial_latest,
            )
            infos.append(replace(info, run=kept))
    judged = [(value, index, name) for index, info in enumerate(infos) for value, name in judged_checkpoints(info)]
    best = sorted(judged)[: storage.save_experiment_best]
    return sum(
        len(remove_superseded(info, [name for _, owner, name in best if owner == index]))
        for index, info in enumerate(infos)
    )
