"""Counts in words, and the sentence of a run that found nothing: it must not cost an import."""

from __future__ import annotations


def count(number: int, noun: str) -> str:
    """Return ``1 file`` or ``2,000 files``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def nothing_found(files: int) -> str:
    return f"No PyTorchTrial in {count(files, 'file')}."
