"""The console commands ``ds-train`` and ``ds-verify``.

They must answer ``--help`` and a missing runtime at once and in words, so nothing here imports torch.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def train(arguments: Sequence[str] | None = None) -> int:
    """``ds-train``: run a trial from its experiment config; the exit code."""
    from trial_runtime.train.cli import main

    return main(arguments)


def verify(arguments: Sequence[str] | None = None) -> int:
    """``ds-verify``: compare an original trial with its conversion; the exit code."""
    from trial_runtime.train.requirements import missing_runtime

    parser = argparse.ArgumentParser(
        prog="ds-verify",
        description="Train a trial and its conversion side by side and show whether they are the same. "
        "This release does not contain it yet.",
    )
    parser.add_argument("path", nargs="*", metavar="PATH")
    parser.parse_args(arguments)
    parser.exit(2, f"ds-verify: {missing_runtime() or 'is not part of this release'}\n")
