"""All results of one verification, for the terminal and the HTML page."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ds_migrate.findings import Finding

from ds_verify.runs import Round, Settings, Training
from ds_verify.select_trial import Choice
from ds_verify.verdict import Outcome, explanations, headline, outcome
from ds_verify.working_copies import Sides

_PACKAGES = ("ds-migrate", "torch", "deepspeed", "numpy", "determined")


@dataclass
class Verification:
    """Both sides, the runs and their outcomes.

    failure: why the original itself does not train; then there is no verdict.
    """

    sides: Sides
    choice: Choice
    settings: Settings
    rounds: list[Round] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    failure: str | None = None

    def add(self, trained: Round) -> None:
        """Add the runs with one number of ranks."""
        self.rounds.append(trained)
        if trained.original.failure is not None:
            ranks = "1 rank" if trained.ranks == 1 else f"{trained.ranks} ranks"
            self.failure = f"the original does not train with {ranks}: {trained.original.failure.text.strip()}"
            return
        self.outcomes.append(outcome(trained))
        self.outcomes += [outcome(trained, stage) for stage, swept in trained.swept.items() if swept.failure is None]

    @property
    def same(self) -> bool:
        """True when all that was compared is the same."""
        return self.failure is None and bool(self.outcomes) and all(each.same for each in self.outcomes)

    @property
    def headline(self) -> str:
        """The verdict in one line."""
        if self.failure is not None:
            return "could not run: " + self.failure.partition(":")[0]
        return headline(self.outcomes, self.settings.steps)

    @property
    def explanations(self) -> list[tuple[str, Finding]]:
        """Review findings that may be the reason of a difference; none when there is no difference."""
        parted = any(not each.same for each in self.outcomes)
        return explanations(self.sides.findings) if parted else []

    def costs(self) -> Iterator[tuple[str, dict[str, Any], str]]:
        """Yield label, figures and, where there are none, the reason, of each run that was not a control."""
        for trained in self.rounds:
            label = "1 rank" if trained.ranks == 1 else f"{trained.ranks} ranks"
            named: list[tuple[str, Training]] = [("original", trained.original), ("converted", trained.converted)]
            named += [(f"converted, ZeRO {stage}", swept) for stage, swept in trained.swept.items()]
            for name, training in named:
                reason = training.failure.reason if training.failure is not None else ""
                yield f"{name}, {label}", training.figures, reason

    @property
    def versions(self) -> dict[str, str]:
        """Versions of everything that affects the numbers."""
        found = {"python": platform.python_version()}
        for name in _PACKAGES:
            try:
                found[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                continue
        device = next((figures["device"] for _, figures, _ in self.costs() if figures), self.settings.device)
        return {**found, "device": device, "platform": platform.platform()}


def speed(figures: dict[str, Any]) -> str:
    """Return samples a second, or batches where the batch size is not known; "-" without a measurement.

    On a CPU there is none: runs train side by side on its cores, for too few batches to be worth a figure.
    """
    seconds = figures.get("seconds_a_batch")
    if not seconds or figures.get("device") == "cpu":
        return "-"
    samples = figures.get("samples")
    return f"{samples / seconds:,.0f} samples/s" if samples else f"{1 / seconds:,.1f} batches/s"


def memory(figures: dict[str, Any]) -> str:
    """Return the peak memory of the rank that needs most."""
    return f"{figures['peak_bytes'] / 2**20:,.0f} MiB" if figures.get("peak_bytes") else "-"
