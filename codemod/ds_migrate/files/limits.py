"""Sizes up to which files are converted, so that every run ends soon. Files of projects are far below them.

A module of ``LARGEST_MODULE`` bytes takes 8 s of CPU and 0.8 GB (libcst takes 700 bytes for each byte), a config of
``LARGEST_CONFIG`` bytes 8 s (ruamel.yaml takes 30 us for each byte).
"""

from __future__ import annotations

LARGEST_MODULE = 1_000_000  # bytes of a module that is converted
LARGEST_READ = 10_000_000  # bytes of a module whose classes and imports are read
LARGEST_CONFIG = 1 << 18  # bytes of an experiment config
LARGEST_JSON = 100_000  # bytes of a DeepSpeed config
MOST_WORK = 20_000_000  # bytes of all modules that are converted together, times the number of their trials
DEEPEST_MODULE = 1_000  # nodes of a plain script's syntax tree within each other: its time grows with the square
DEEPEST_CLASS = 500  # classes in one line of inheritance that are followed
MOST_TRIALS = 100  # that are converted together
MOST_PATTERNS = 2_000  # lines of a .gitignore outside of git that are applied


def shown(size: int) -> str:
    """Return a number of bytes for a message."""
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"
