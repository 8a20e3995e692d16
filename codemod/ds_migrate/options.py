"""The choices of one run, as the command line, ``pyproject.toml`` or a caller makes them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """How to convert.

    ``target``: ``"runtime"`` (the bundled trial_runtime) or ``"determined"`` (the official package).
    ``zero``: ZeRO stage 0 to 3, or None for the highest stage that is exact for the trial.
    """

    target: str = "runtime"
    zero: int | None = None
