"""Gradient accumulation of an engine."""

from __future__ import annotations

from typing import Any


def is_managed(engine: Any) -> bool:
    """Return whether the engine counts micro-batches itself; otherwise every ``step()`` steps."""
    managed = getattr(engine, "managed_gradient_accumulation", None)  # since DeepSpeed 0.19.4
    return True if managed is None else bool(managed())
