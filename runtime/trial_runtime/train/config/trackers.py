"""Experiment trackers that a config can name."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from trial_runtime.train.config.errors import Section, did_you_mean

TRACKERS = ("tensorboard", "trackio", "mlflow", "wandb")
"""Names of the trackers, which are those of their libraries."""


def read_trackers(root: Section) -> tuple[str, ...]:
    """Return the trackers in the field ``log_with``: a list, or names with commas between them.

    A name that is unknown is recorded among the problems.
    """
    value = root.get("log_with")
    names = [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        root.reject("log_with", f"write a list of {', '.join(TRACKERS)}")
        return ()
    for name in names:
        if name not in TRACKERS:
            meant = did_you_mean(name, TRACKERS)
            root.problems.report(f"log_with: there is no tracker {name!r}; write some of {', '.join(TRACKERS)}{meant}")
    return tuple(dict.fromkeys(names))


def missing_trackers(names: Sequence[str]) -> str:
    """Return one line that names trackers whose library is not installed; empty without any. Import none of them."""
    missing = [name for name in names if not _is_installed(name)]
    return f"log_with: not installed: {', '.join(missing)}; run pip install {' '.join(missing)}" if missing else ""


def _is_installed(library: str) -> bool:
    found = find_spec(library)
    return found is not None and found.origin is not None  # without one it is a folder of that name, such as ./wandb
