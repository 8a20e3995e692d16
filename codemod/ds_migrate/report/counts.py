"""Counts in words, and the sentence of a run that found nothing: importing this costs nothing else."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from ds_migrate.report.escaping import visible


def count(number: int, noun: str) -> str:
    """Return ``1 file`` or ``2,000 files``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def nothing_found(files: int, loops: int = 0, paths: Sequence[str] = ()) -> str:
    """Return that there is no trial, and the command for the plain training loops that ``loops`` files seem to have."""
    if not files and paths:
        return f"No Python file in {', '.join(map(visible, paths))}."
    sentence = f"No PyTorchTrial in {count(files, 'file')}."
    if not loops:
        return sentence
    what = "has a plain training loop" if loops == 1 else "have plain training loops"
    command = visible(shlex.join(["ds-migrate", "--plain", *paths]))
    return f"{sentence} {count(loops, 'file')} {what}: {command}"
