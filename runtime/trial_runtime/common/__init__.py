"""Helpers that Determined's packages share."""

from __future__ import annotations

import importlib
import logging
import sys
from typing import Any

import trial_runtime


def set_logger(debug_enabled: bool) -> None:
    """Log to standard output only, in ``LOG_FORMAT``, from INFO on.

    Args:
        debug_enabled: log from DEBUG on instead.
    """
    level = logging.DEBUG if debug_enabled else logging.INFO
    logging.basicConfig(stream=sys.stdout, level=level, format=trial_runtime.LOG_FORMAT, force=True)


def __getattr__(name: str) -> Any:
    if name in ("check", "experimental"):
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
