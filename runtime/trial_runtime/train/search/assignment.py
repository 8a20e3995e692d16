"""The assignment of one trial of a search, and its result: two small files beside its run directory.

Whoever leads the search writes the assignment; whoever runs the trial writes the outcome. An assignment without an
outcome of the same order is open, and whichever machine claims it first runs it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trial_runtime._atomic_file import write_whole


@dataclass(frozen=True)
class Assignment:
    """One trial of a search.

    Attributes:
        trial: its number, from 1.
        experiment: the number of the search's directory.
        request_id: the UUID under which Determined's master would have known it.
        seed: of every rank's generators.
        hparams: one value for each hyperparameter, secrets of the config masked.
        order: how often it was sent to train; 0: not yet.
        length: train until then, in all, and validate, as ``{"batches": 100}``; None: until the trial's own end.
        is_stopped: it is to leave at once, with a checkpoint.
    """

    trial: int
    experiment: int
    request_id: str
    seed: int
    hparams: dict[str, Any]
    order: int = 0
    length: dict[str, int] | None = None
    is_stopped: bool = False

    def write(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        write_whole(path, json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def read(cls, path: Path) -> Assignment:
        """Return the assignment in the file.

        Raises:
            ValueError: it holds none.
        """
        try:
            found = cls(**json.loads(path.read_text(encoding="utf-8")))
            found._check(path)
            return found
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise ValueError(f"{path}: is no assignment of a search's trial ({error!r})") from error

    def _check(self, path: Path) -> None:
        """Raise ``TypeError`` for content that no search wrote to this file."""
        numbers = (self.trial, self.experiment, self.seed, self.order)
        lengths = {} if self.length is None else self.length
        if (
            not all(type(number) is int for number in numbers)
            or not (isinstance(self.request_id, str) and isinstance(self.hparams, dict) and isinstance(lengths, dict))
            or path.stem.lstrip("0") != str(self.trial)
        ):
            raise TypeError("it has other fields than the file of this trial")


@dataclass(frozen=True)
class Outcome:
    """The end of the process that followed an assignment.

    Attributes:
        order: that of the assignment.
        code: exit code of ``ds-train``.
    """

    order: int
    code: int

    def write(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        write_whole(path, json.dumps(asdict(self)) + "\n")

    @classmethod
    def read(cls, path: Path) -> Outcome | None:
        """Return the outcome in the file; None without one."""
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError, RecursionError):
            return None
