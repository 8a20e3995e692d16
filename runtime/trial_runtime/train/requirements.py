"""What the runtime's commands need beyond the codemod."""

from __future__ import annotations

import importlib.util

_NEEDED = ("torch", "deepspeed")


def missing_runtime() -> str:
    """How to install what is missing, in one line; empty when all is there. Imports none of it."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if not missing:
        return ""
    return f"{' and '.join(missing)} missing; install the runtime: pip install 'ds-migrate[runtime]'"
