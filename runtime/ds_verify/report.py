"""All results of one verification, for the terminal and the HTML page."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ds_migrate.findings import Finding

from ds_verify.exit_codes import DIFFERENT, NOT_RUN, SAME
from ds_verify.failure import Failure
from ds_verify.runs import Round, Settings, TrainingRun
from ds_verify.select_trial import TrialSelection
from ds_verify.verdict import Outcome, explanations, headline, outcome, ranks_named
from ds_verify.working_copies import Sides

_PACKAGES = ("ds-migrate", "torch", "deepspeed", "numpy", "determined")


@dataclass
class Verification:
    """Both sides, the runs and their outcomes.

    failure: why the original itself does not train, with its number of ranks. Where fewer ranks were compared before,
        there is a verdict nevertheless.
    replaces_cuda: whether a stand-in keeps on the CPU what the code sends to CUDA.
    subject: what is compared. unit: of its steps.
    """

    sides: Sides
    selection: TrialSelection
    settings: Settings
    rounds: list[Round] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    failure: tuple[int, Failure] | None = None
    replaces_cuda: bool = False
    subject: ClassVar[str] = "trial"
    unit: ClassVar[str] = "batch"

    def add(self, trained: Round) -> None:
        """Add the runs with one number of ranks."""
        self.rounds.append(trained)
        if trained.original.failure is not None:
            self.failure = trained.ranks, trained.original.failure
            return
        self.outcomes.append(outcome(trained, unit=self.unit))
        self.outcomes += [
            outcome(trained, stage, self.unit) for stage, swept in trained.swept.items() if swept.failure is None
        ]

    @property
    def same(self) -> bool:
        """True when all that was compared is the same."""
        return bool(self.outcomes) and all(each.same for each in self.outcomes)

    @property
    def is_complete(self) -> bool:
        """True when as many ranks were compared as were asked for, or as the config asks for."""
        compared = max((each.ranks for each in self.outcomes), default=0)
        return self.failure is None or compared >= self.selection.slots

    @property
    def exit_code(self) -> int:
        """The exit code: 0 the same, 1 different, 2 could not run, or not with as many ranks as were asked for."""
        if not self.same:
            return DIFFERENT if self.outcomes else NOT_RUN
        return SAME if self.is_complete else NOT_RUN

    @property
    def headline(self) -> str:
        """The verdict in one line."""
        if self.failure is None:
            caution = f"; {self.unseen}" if self.same and self.unseen else ""
            return headline(self.outcomes, self.trained) + caution
        ranks, failure = self.failure
        label = ranks_named(ranks)
        if not self.outcomes:
            return f"could not run: the original {failure.verb} with {label}{failure.occasion}: {failure.reason}"
        compared = headline(self.outcomes, self.trained)
        return f"{compared}; {label}: the original itself {failure.verb}{failure.occasion} ({failure.reason})"

    @property
    def trained(self) -> str:
        """The number of batches trained."""
        return str(self.settings.steps)

    @property
    def unseen(self) -> str:
        """Return what trains, but not in the run; empty where nothing is known to."""
        return ""

    @property
    def compared(self) -> str:
        """The compared quantities, and the number of steps."""
        return (
            "every training metric of each batch, learning rates, norms of weights and buffers after each optimizer "
            "step, validation metrics, and every initial and final parameter and buffer of every rank, over "
            f"{self.settings.steps} batches" + (", saved and resumed in the middle" * self.settings.is_resumed)
        )

    @property
    def not_verified(self) -> list[str]:
        """Trials of the project, and scripts of other configs, that were not run."""
        run: list[str] = next((figures["trial_classes"] for _, figures, _ in self.costs() if figures), [])
        known = {name.rpartition(":")[2] for name in self.selection.others} | {*run}
        return sorted({*self.selection.others, *(self.sides.trials - known)}) if run else list(self.selection.others)

    @property
    def notes(self) -> Iterator[str]:
        """Yield what a reader of the verdict has to know besides."""
        if self.replaces_cuda:
            yield "what the code sends to CUDA stays on the CPU, on both sides"
        if self.not_verified:
            yield f"not verified: {', '.join(self.not_verified)} (--trial or --config)"
        for each in self.outcomes:
            for name, key in each.moved.items():
                where = f"with {each.label}, from {key.kind} batch {key.step} on"
                yield f"{name} counts samples; {where}, one falls otherwise, as rounding may have it"

    @property
    def tracebacks(self) -> Iterator[tuple[str, str]]:
        """Yield each error that ended a run, as the user's own Python would show it, with the name of the run."""
        if self.failure is not None:
            ranks, failure = self.failure
            yield f"the original {failure.verb} with {ranks_named(ranks)}{failure.occasion}", failure.text.strip()
        for each in self.outcomes:
            if each.failure is not None:
                title = f"the converted {self.subject} does not train with {each.label}{each.failure.occasion}"
                yield title, each.failure.text.strip()

    @property
    def explanations(self) -> list[tuple[str, Finding]]:
        """Review findings that may be the reason of a difference; none when there is no difference."""
        parted = any(not each.same for each in self.outcomes)
        return explanations(self.sides.findings) if parted else []

    def costs(self) -> Iterator[tuple[str, dict[str, Any], str]]:
        """Yield label, figures and, where there are none, the reason, of each run that was not a control."""
        for trained in self.rounds:
            label = ranks_named(trained.ranks)
            named: list[tuple[str, TrainingRun]] = [("original", trained.original), ("converted", trained.converted)]
            named += [(f"converted, ZeRO {stage}", swept) for stage, swept in trained.swept.items()]
            for name, training in named:
                failed = training.failure
                reason = f"{failed.reason}{failed.occasion}" if failed is not None else ""
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
