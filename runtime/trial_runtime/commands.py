"""The console commands ``ds-train`` and ``ds-verify``.

They must answer ``--help`` and a missing runtime at once and in words, so nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Sequence


def train(arguments: Sequence[str] | None = None) -> int:
    """Run ``ds-train``: a trial from its experiment config. Returns the exit code."""
    from trial_runtime.train.cli import main

    return main(arguments)


def verify(arguments: Sequence[str] | None = None) -> int:
    """Run ``ds-verify``: compare an original trial with its conversion. Returns the exit code."""
    from ds_verify.cli import main

    return main(arguments)
