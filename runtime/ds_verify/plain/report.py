"""The results of the verification of a script, in the form of those of a trial."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from ds_verify.report import Verification


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
    def compared(self) -> str:
        """The compared quantities, and the number of steps."""
        return (
            "losses, gradient norms and learning rates of each optimizer step, norms of weights and buffers after it, "
            f"and every initial and final parameter and buffer of every rank, over {self.settings.steps} steps"
            + (", saved and resumed in the middle" * self.is_resumed)
        )

    @property
    def not_verified(self) -> list[str]:
        """Nothing: one script is named."""
        return []

    @property
    def notes(self) -> Iterator[str]:
        """Yield what a reader of the verdict has to know besides."""
        yield from self.remarks
