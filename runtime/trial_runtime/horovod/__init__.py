"""Horovod's calls, by the name that trials import: ``from determined.horovod import hvd``."""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    if name == "hvd":
        return importlib.import_module(f"{__name__}.hvd")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
