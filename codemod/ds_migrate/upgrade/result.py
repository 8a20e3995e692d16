"""The result of an upgrade, and whether a project needs one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ds_migrate.findings import Finding
from ds_migrate.project.trials import Project

# Calls of the context under the private names that it had in 0.12.11 and 0.12.12, and today's names.
RENAMED = {
    "_Model": "wrap_model",
    "_Optimizer": "wrap_optimizer",
    "_LRScheduler": "wrap_lr_scheduler",
    "_configure_apex_amp": "configure_apex_amp",
    "_backward": "backward",
    "_step_optimizer": "step_optimizer",
    "_to_device": "to_device",
    "Model": "wrap_model",
    "Optimizer": "wrap_optimizer",
}
_SIGNS = tuple(f".{name}(".encode() for name in RENAMED)
_KINDS = ("pytorch", "old-api")


@dataclass(frozen=True)
class Notice:
    """Something that the upgrade did in a module; ``line`` (from 1) is one of the upgraded module."""

    line: int
    message: str
    is_review: bool = False


@dataclass(frozen=True)
class UpgradedModule:
    """An upgraded module. ``origins``: for each of its lines, the line (from 1) of the original that it replaces."""

    data: bytes
    origins: tuple[int, ...]
    notices: tuple[Notice, ...]


@dataclass
class Upgrade:
    """The upgrade of a project: its changed modules by file, and for each trial that stays the reason."""

    modules: dict[Path, UpgradedModule] = field(default_factory=dict)
    problems: dict[tuple[Path, str], Finding] = field(default_factory=dict)


def may_need_upgrade(project: Project, read: Callable[[Path], bytes | None]) -> bool:
    """Return whether the project has a trial that was not written for today's names."""
    old = any(trial.kind == "old-api" for trial in project.trials.values())
    return old or any(files_with_private_names(project, read))


def files_with_private_names(project: Project, read: Callable[[Path], bytes | None]) -> Iterator[Path]:
    """Yield the files of trials that may call their context by a private name."""
    paths = {path for t in project.trials.values() if t.kind in _KINDS for path, _ in (t.key, *t.bases)}
    for path in sorted(paths):
        data = read(path) or b""
        if any(sign in data for sign in _SIGNS):
            yield path
