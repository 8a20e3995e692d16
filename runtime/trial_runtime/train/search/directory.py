"""The directory of a search: ``runs/NAME-1`` with the ledger, one run directory a trial, and who leads and claims."""

from __future__ import annotations

import fcntl
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from trial_runtime._atomic_file import write_whole
from trial_runtime._run_record import read_object
from trial_runtime.train.search.assignment import Assignment, Outcome

SEARCH_FILE = "search.json"


@dataclass
class SearchRecord:
    """The content of ``search.json``.

    Attributes:
        number: that of the directory; the trials' experiment id.
        seed: ``experiment_seed``, 0 to 2**32 - 1.
        digest: of the searcher and the hyperparameters, which may not change.
        status: ``running``, ``stopped``, or as the search ended: ``completed``, ``failed``, ``canceled``.
    """

    number: int
    seed: int
    digest: str
    status: str = "running"


class SearchDirectory:
    """The files of a search.

    Args:
        path: the directory; each machine may have it under another path.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ledger = path / "search.jsonl"
        self.trials = path / "trials"

    @property
    def exists(self) -> bool:
        """Return whether a search was started here."""
        return (self.path / SEARCH_FILE).is_file()

    def read(self) -> SearchRecord:
        """Return the record of the search.

        Raises:
            ValueError: it cannot be read.
        """
        path = self.path / SEARCH_FILE
        try:
            record = SearchRecord(**read_object(path))
            if type(record.number) is not int or type(record.seed) is not int or not 0 <= record.seed < 1 << 32:
                raise ValueError(f"its number and seed are {record.number!r:.80} and {record.seed!r:.80}")
            return record
        except (OSError, ValueError, TypeError) as error:
            raise ValueError(f"{path}: cannot be read ({error!r})") from error

    def write(self, record: SearchRecord) -> None:
        """Write the record, whole or not at all."""
        write_whole(self.path / SEARCH_FILE, json.dumps(asdict(record), indent=2) + "\n")

    def run_directory(self, trial: int) -> Path:
        """Return the run directory of a trial."""
        return self.trials / f"{trial:04d}"

    def metrics_path(self, trial: int) -> Path:
        """Return the file with the metrics of a trial."""
        return self.run_directory(trial) / "metrics.jsonl"

    def console_path(self, trial: int) -> Path:
        """Return the file that a trial's ``ds-train`` prints to."""
        return self.trials / f"{trial:04d}.log"

    def assignment(self, trial: int) -> Assignment | None:
        """Return the assignment of a trial; None before its creation."""
        path = self.assignment_path(trial)
        return Assignment.read(path) if path.is_file() else None

    def assign(self, assignment: Assignment) -> None:
        """Write the assignment of a trial."""
        self.trials.mkdir(exist_ok=True)
        assignment.write(self.assignment_path(assignment.trial))

    def assignment_path(self, trial: int) -> Path:
        """Return the file with the assignment of a trial."""
        return self.trials / f"{trial:04d}.json"

    def assignments(self) -> list[Assignment]:
        """Return the assignments of all trials, by number."""
        found = (self.assignment(int(path.stem)) for path in sorted(self.trials.glob("*.json")) if path.stem.isdigit())
        return [assignment for assignment in found if assignment is not None]

    def outcome(self, assignment: Assignment) -> Outcome | None:
        """Return what became of an assignment; None while it is open."""
        outcome = Outcome.read(self._outcome_path(assignment.trial))
        return outcome if outcome is not None and outcome.order == assignment.order else None

    def finish(self, trial: int, outcome: Outcome) -> None:
        """Write what became of a trial's assignment."""
        outcome.write(self._outcome_path(trial))

    def is_open(self, assignment: Assignment) -> bool:
        """Return whether somebody has to run the assignment."""
        return assignment.order > 0 and self.outcome(assignment) is None

    def lead(self) -> IO[str] | None:
        """Return the lock of the one process that decides, held until closed; None while another has it."""
        return try_lock(self.path / "leader.lock")

    def claim(self, trial: int) -> IO[str] | None:
        """Return the lock of a trial, held until closed or until its process ends; None while another has it."""
        return try_lock(self.trials / f"{trial:04d}.claim")

    def is_claimed(self, trial: int) -> bool:
        """Return whether some machine runs a trial."""
        path = self.trials / f"{trial:04d}.claim"
        if not path.is_file():
            return False
        # Shared: of several that look at the same time none sees another.
        held = try_lock(path, fcntl.LOCK_SH)
        if held is None:
            return True
        held.close()
        return False

    def is_training(self, trial: int) -> bool:
        """Return whether a rank holds the run directory of a trial."""
        if not self.run_directory(trial).is_dir():
            return False
        held = try_lock(self.run_directory(trial) / "lock")
        if held is None:
            return True
        held.close()
        return False

    def _outcome_path(self, trial: int) -> Path:
        return self.trials / f"{trial:04d}.outcome"


def try_lock(path: Path, kind: int = fcntl.LOCK_EX) -> IO[str] | None:
    """Return the file, locked until it is closed or all processes that hold it ended; None while another has it."""
    held = path.open("a+", encoding="utf-8")
    try:
        fcntl.flock(held, kind | fcntl.LOCK_NB)
    except OSError:
        held.close()
        return None
    return held
