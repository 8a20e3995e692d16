"""The results of the verification of a script, in the form of those of a trial."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from ds_verify.compare import gap_between
from ds_verify.record import Key
from ds_verify.report import Verification
from ds_verify.runs import TrainingRun
from ds_verify.tolerance import FLOORS

_SEEN = 100
"""Weights that move by less than so many limits do not show a difference of 1% in how they move."""


@dataclass
class PlainVerification(Verification):
    """Both sides of a script, the runs and their outcomes.

    is_resumed: whether both sides are saved and resumed. remarks: what the runs gave rise to.
    """

    subject: ClassVar[str] = "script"
    unit: ClassVar[str] = "step"
    is_resumed: bool = False
    remarks: Sequence[str] = field(default_factory=list)

    @property
    def trained(self) -> str:
        """The number of steps trained; with each number of ranks, where the script ends before all of them."""
        done = [trained.original.figures["steps"] for trained in self.rounds if trained.original.figures]
        counts = list(dict.fromkeys(done)) or [self.settings.steps]
        return " and ".join(map(str, counts))

    @property
    def compared(self) -> str:
        """The compared quantities, and the number of steps."""
        return (
            "losses, gradient norms and options of each optimizer step, norms of weights and buffers after it, "
            "evaluations, saved files, and every initial and final parameter and buffer of every rank, over "
            f"{self.trained} steps" + (", saved and resumed in the middle" * self.is_resumed)
        )

    @property
    def not_verified(self) -> list[str]:
        """Nothing: one script is named."""
        return []

    @property
    def unseen(self) -> str:
        """The optimizers that the run ended before, as in a loop that steps one of them in every fifth step."""
        figures = self.rounds[0].original.figures if self.rounds else {}
        unstepped = dict.fromkeys(figures["unstepped"]) if figures and not figures["has_ended"] else ()
        return f"never stepped: {', '.join(unstepped)}" if unstepped else ""

    @property
    def notes(self) -> Iterator[str]:
        """Yield what a reader of the verdict has to know besides."""
        yield from self.remarks
        figures = self.rounds[0].original.figures if self.rounds else {}
        if figures and not figures["has_ended"]:
            if unreached := [*figures["unstepped"], *figures["unreached"]]:
                yield f"not reached, so not compared: {', '.join(dict.fromkeys(unreached))}; more --steps may reach it"
            if not (figures["evaluations"] or figures["files"]):
                yield "no evaluation and no saving was reached: more --steps compare them, and the ends of epochs"
            elif max(each.original.figures.get("passes", 0) for each in self.rounds) == 1:
                yield "no second pass over the training data was begun: more --steps compare its order (set_epoch)"
        floor = FLOORS["float32", self.settings.device]
        if figures and (moved := largest_move(self.rounds[0].original)) < _SEEN * floor:
            yield f"weights move by {moved:.1e} at most, and {floor:.0e} is no difference: more --steps prove more"
        if self.failure is not None and (step := self.failure[1].step) > 1 and not self.failure[1].varies:
            yield f"the original trains {step} steps before it fails: --steps {step - 1} ends before that"


def largest_move(training: TrainingRun) -> float:
    """Return by how much a run has moved an optimized weight at most; infinite where that is not recorded."""
    values, last = training.record.values, training.figures["steps"]
    first = min((key.step for key in values if key.kind == "initial"), default=0)
    pairs = [
        (values.get(Key("initial", first, name)), values.get(Key("state", last, name)))
        for name in training.figures["optimized"]
    ]
    return max((gap_between(a, b) for a, b in pairs if a is not None and b is not None), default=float("inf"))
