"""Paths as messages show them."""

from __future__ import annotations

from pathlib import Path

from ds_migrate.report.escaping import visible


def relative_path(path: Path) -> Path:
    """Return ``path`` relative to the working directory, where it lies below."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def shown_path(path: Path) -> str:
    """Return ``path`` as :func:`relative_path`, with an escape for each character that a terminal would obey."""
    return visible(str(relative_path(path)))
