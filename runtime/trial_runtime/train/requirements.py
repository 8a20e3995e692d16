"""Requirements of the runtime's commands beyond the codemod's."""

from __future__ import annotations

import importlib.util

from trial_runtime._installation import install_command

_NEEDED = ("torch", "deepspeed")


def missing_runtime() -> str:
    """Return one line that names what is missing and how to install it; empty when nothing is. Import none of it."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if not missing:
        return ""
    return f"missing: {' and '.join(missing)}; install the runtime: {install_command()}"
