"""Paths as messages show them."""

from __future__ import annotations

from pathlib import Path


def relative_path(path: Path) -> Path:
    """Return ``path`` relative to the working directory, where it lies below."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
