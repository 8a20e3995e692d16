"""``checkpoint_storage``: where checkpoints go and how many are kept."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from trial_runtime.train.problems import Section

_LATER = ("s3", "gs", "gcs", "azure")


@dataclasses.dataclass(frozen=True)
class Storage:
    """Where checkpoints go.

    Attributes:
        root: the folder under which each run gets its own; None: the run directory.
        save_trial_best: how many of the best to keep when the run has ended; None keeps all.
        save_trial_latest: how many of the latest to keep then; None keeps all.
    """

    root: Path | None = None
    save_trial_best: int | None = None
    save_trial_latest: int | None = None


def read_storage(section: Section, context: Path) -> Storage:
    """The storage that ``section`` describes; relative paths start at the context directory."""
    best = section.optional_integer("save_trial_best")
    experiment_best = section.optional_integer("save_experiment_best")
    latest = section.optional_integer("save_trial_latest")
    if (best, experiment_best, latest) != (None, None, None):
        # Determined's defaults for the others. With one trial, the experiment's best checkpoints are the trial's.
        best = max(1 if best is None else best, experiment_best or 0)
        latest = 1 if latest is None else latest
    return Storage(_root(section, context), best, latest)


def _root(section: Section, context: Path) -> Path | None:
    kind = section.get("type")
    if kind is None and not (section.has("host_path") or section.has("container_path")):
        return None
    if kind in (None, "shared_fs"):
        return _shared(section, context)
    if kind == "directory":
        path = section.text("container_path")
        if path is None:
            section.problems.say(f"{section.at('container_path')}: is missing: write the folder for checkpoints")
            return None
        return context / path
    hint = (
        "remote storage is not part of this release; mount it and write type: shared_fs with host_path"
        if kind in _LATER
        else "write shared_fs (with host_path) or directory (with container_path)"
    )
    section.bad("type", hint)
    return None


def _shared(section: Section, context: Path) -> Path | None:
    host = section.text("host_path")
    if host is None:
        section.problems.say(f"{section.at('host_path')}: is missing: write the folder for checkpoints")
        return None
    root = context / host
    inner = section.text("storage_path")
    if inner is None:
        return root
    path = root / inner  # an absolute storage_path replaces the root, so it has to lie below it
    if not path.resolve().is_relative_to(root.resolve()):
        section.bad("storage_path", f"it must lie inside host_path ({host})")
    return path
