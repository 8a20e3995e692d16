"""Runs and searches of ``ds-train`` on disk, found by path, directory name or number."""

from __future__ import annotations

import dataclasses
import fcntl
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from trial_runtime._cluster_info import ClusterInfo, get_cluster_info
from trial_runtime._run_record import RUN_FILE, read_object
from trial_runtime.train.history.records import SEARCH_FILE, Run, read_run


class StartedRun(Run):
    """A run whose ranks have been described, of a search or not; its path is absolute."""

    info: ClusterInfo

    @property
    def has_checkpoints(self) -> bool:
        """Return whether it saved a checkpoint that is still there, here or in its remote storage."""
        return any(True for _ in iter_checkpoints(self))

    @property
    def state(self) -> str:
        """Return its status now: ``running``, ``completed``, ``stopped``, or ``failed``, as for one that was killed."""
        status = str(_read(self.path / RUN_FILE).get("status", "failed"))
        return "failed" if status == "running" and not self._is_locked() else status

    def _is_locked(self) -> bool:
        try:
            with (self.path / "lock").open(encoding="utf-8") as held:
                fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return False


@dataclasses.dataclass(frozen=True)
class Group:
    """A search, or one run on its own: what Determined called an experiment.

    Attributes:
        path: the directory of the search or of the run.
        runs: its runs, by trial id.
    """

    path: Path
    runs: tuple[StartedRun, ...]

    @property
    def number(self) -> int:
        """Return the number of the experiment."""
        if self.runs:
            return self.runs[0].info.trial.experiment_id
        number = _read(self.path / SEARCH_FILE).get("number")
        return number if isinstance(number, int) else 0

    @property
    def has_checkpoints(self) -> bool:
        """Return whether one of its runs has a checkpoint."""
        return any(run.has_checkpoints for run in self.runs)

    @property
    def status(self) -> str:
        """Return the status of the search, or of its only run."""
        if (self.path / SEARCH_FILE).is_file():
            return str(_read(self.path / SEARCH_FILE).get("status", "failed"))
        return self.runs[0].state


_Found = TypeVar("_Found", StartedRun, Group)


def all_groups() -> list[Group]:
    """Return the runs and searches beside this process's run, and in ``runs`` of the working directory.

    The run that this process belongs to is not among them.
    """
    info = get_cluster_info()
    own = None if info is None else Path(info.run.directory)
    bases = [Path("runs").resolve()]
    if own is not None:
        bases += [own.parent, *([own.parents[2]] if own.parent.name == "trials" else [])]
    found = {}
    for base in dict.fromkeys(bases):
        for path in sorted(base.iterdir()) if base.is_dir() else ():
            group = _group(path)
            if group is not None and path != own:
                found[path] = group
    return list(found.values())


def find_group(given: int | str | Path) -> Group:
    """Return the search or run with this number, directory name or path.

    Raises:
        ValueError: there is none, or several have the number; the message lists them.
    """
    if not str(given).isdigit() and (group := _group(Path(str(given)).resolve())) is not None:
        return group
    groups = all_groups()
    matching = [group for group in groups if str(given) in (group.path.name, str(group.number))]
    return _only(matching, "experiment", given, [group.path for group in groups])


def find_run(given: int | str | Path) -> StartedRun:
    """Return the run with this trial id, directory name or path; a search's runs are found too.

    Raises:
        ValueError: there is none, or several have the number; the message lists them.
    """
    if not str(given).isdigit() and (run := run_in(Path(str(given)).resolve())) is not None:
        return run
    runs = [run for group in all_groups() for run in group.runs]
    matching = [run for run in runs if str(given) in (run.path.name, str(run.info.trial.trial_id))]
    return _only(matching, "trial", given, [run.path for run in runs])


def _only(matching: list[_Found], kind: str, given: object, all_paths: list[Path]) -> _Found:
    if len(matching) > 1:  # scripts for inference leave runs as well, which have the same numbers
        matching = [one for one in matching if one.has_checkpoints] or matching
    if len(matching) == 1:
        return matching[0]
    if matching:
        paths = ", ".join(str(one.path) for one in matching)
        raise ValueError(f"There are several runs with the number {given}: {paths}. Give the path of one of them.")
    there = ", ".join(map(str, all_paths)) or "none"
    raise ValueError(
        f"There is no {kind} {given!r}: give its number, or the path of a run directory of ds-train (there: {there})."
    )


def _group(path: Path) -> Group | None:
    if (path / SEARCH_FILE).is_file():
        runs = [run_in(trial) for trial in sorted((path / "trials").glob("*")) if trial.is_dir()]
        return Group(path, tuple(run for run in runs if run is not None))
    run = run_in(path)
    return None if run is None else Group(path, (run,))


def run_in(path: Path) -> StartedRun | None:
    """Return the run in a directory; None when there is none, or it has not started."""
    record = read_run(path)
    return None if record is None or record.info is None else StartedRun(path, record.status, record.seed, record.info)


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_object(path)
    except (OSError, ValueError):
        return {}


def iter_checkpoints(run: StartedRun) -> Iterator[tuple[str, int]]:
    """Yield name and batches of each checkpoint of a run, here or in its remote storage, in the order of writing."""
    from trial_runtime.train.run.retention import checkpoints_in

    yield from checkpoints_in(run.checkpoint_directory, run.info.run.storage).items()
