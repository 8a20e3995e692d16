"""What is trained: one fixture, on one side, with so many ranks and these options."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from fixture_folders import FIXTURES

STEPS, WINDOW = 14, 2
"""Micro-batches of every run, and between two reports. Epochs have 6 or 12, so that a run ends inside one; it is saved
and resumed after 8, inside one too."""

# oracle: the original with the real `determined`; reference: the original on trial_runtime; candidate: the converted;
# target: converted with `--target determined`, in the real package's own DeepSpeedTrial loop.
Side = Literal["oracle", "reference", "candidate", "target"]


@dataclass(frozen=True)
class Scenario:
    """One training run; `str()` of it is a file name and the part of a test's name.

    zero: ZeRO stage, of the candidate only. accumulation: micro-batches in one optimizer step.
    resumed: saved in the middle, then continued by a new trial.
    """

    fixture: str
    side: Side
    ranks: int = 1
    zero: int = 0
    accumulation: int = 1
    resumed: bool = False
    source: str = ""  # the folder below fixtures/<fixture>, or an absolute path; empty: the side's own
    validates: bool = True  # in between; at the end every run does

    @property
    def folder(self) -> Path:
        """The trial's sources and experiment configs."""
        return FIXTURES / self.fixture / (self.source or ("after" if self.side == "candidate" else "before"))

    @property
    def is_real(self) -> bool:
        """Whether `determined` is the real package in the process that trains this."""
        return self.side in ("oracle", "target")

    def of(self, folder: Path) -> Scenario:
        """Return the same run with the sources of another folder."""
        return replace(self, source=str(folder))

    def __str__(self) -> str:
        name = f"{self.fixture}-{self.side}-{self.ranks}ranks-zero{self.zero}-k{self.accumulation}"
        name += "-resumed" if self.resumed else ""
        name += "" if self.validates else "-unvalidated"
        return f"{name}-{Path(self.source).name}" if self.source else name


@dataclass(frozen=True)
class Case:
    """What one test compares: the run of each side under the same options."""

    fixture: str
    ranks: int
    accumulation: int
    zero: int | None = None  # None: only the original's two sides
    resumed: bool = True

    @property
    def oracle(self) -> Scenario:
        """Never resumed: without a cluster, `determined` starts its batches anew after a restore."""
        return Scenario(self.fixture, "oracle", self.ranks, accumulation=self.accumulation)

    @property
    def reference(self) -> Scenario:
        return replace(self.oracle, side="reference", resumed=self.resumed)

    @property
    def candidate(self) -> Scenario:
        return replace(self.reference, side="candidate", zero=self.zero or 0)

    def __str__(self) -> str:
        name = f"{self.fixture}-{self.ranks}ranks"
        name += "" if self.zero is None else f"-zero{self.zero}"
        return f"{name}-accumulate{self.accumulation}" + ("" if self.resumed else "-undisturbed")
