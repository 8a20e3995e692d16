"""The folders below ``fixtures``: trials, and scripts with a plain PyTorch loop."""

from __future__ import annotations

from pathlib import Path

FIXTURES = Path(__file__).parents[1] / "fixtures"
_NAMES = sorted(folder.parent.name for folder in FIXTURES.glob("*/before"))
PLAIN = [name for name in _NAMES if name.startswith("plain_")]
TRIALS = [name for name in _NAMES if name not in PLAIN]
