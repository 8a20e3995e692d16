"""The use of a config, and the problems found in it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from ds_migrate.suggestions import closest

UNKNOWN: Any = type("Unknown", (), {"__repr__": lambda _: "(unknown)"})()
"""What is not known before training, such as the optimizer that a trial will make."""


@dataclasses.dataclass(frozen=True)
class Setup:
    """Use of a config.

    Attributes:
        ranks: data-parallel ranks; None when they are not known.
        optimizer: the optimizer given to ``deepspeed.initialize`` (None: none), or a function that makes one.
        scheduler: likewise.
        data: the training data given to it (None: none).
        kind: what the engine is around: a model, a ``PipelineModule`` or an ``EngineModule``.
        complete: whether this is the whole config; else code adds to it and resolves what is ``"auto"``.
        here: whether it is used on this machine's accelerator.
    """

    ranks: int | None = None
    optimizer: Any = UNKNOWN
    scheduler: Any = UNKNOWN
    data: Any = UNKNOWN
    kind: Literal["model", "pipeline", "engine module"] = "model"
    complete: bool = True
    here: bool = True


@dataclasses.dataclass(frozen=True)
class Problem:
    """Problem at one place of a config.

    Attributes:
        path: the dotted key.
        text: what is wrong, and what to write instead.
        fatal: whether training would fail, or be another than the one that was asked for.
    """

    path: str
    text: str
    fatal: bool = True

    def __str__(self) -> str:
        return f"{self.path}: {self.text}"


Problems = Iterator[Problem]


def value_at(config: dict[str, Any], path: str, default: Any = None) -> Any:
    """Return the value at a dotted path; ``default`` where the path ends early, and for ``"auto"``."""
    value: Any = config
    for key in path.split("."):
        if not isinstance(value, dict) or key not in value:
            return default
        value = value[key]
    return default if value == "auto" else value


def stage_of(config: dict[str, Any]) -> int:
    """Return the ZeRO stage; 0 where there is none or it is not valid."""
    block = config.get("zero_optimization")
    if isinstance(block, bool):  # an old spelling of stage 1
        return int(block)
    stage = value_at(config, "zero_optimization.stage", 0)
    return int(stage) if str(stage) in ("0", "1", "2", "3") else 0


def enabled(config: dict[str, Any], block: str) -> bool:
    """Return whether a block with ``enabled`` is on."""
    return bool(value_at(config, f"{block}.enabled", False))


def meant(name: str, names: Iterable[str]) -> str:
    """Return the one of ``names`` that ``name`` is probably meant to be; empty when none is close."""
    return closest(name, names, cutoff=0.75) or ""


def shown(value: object) -> str:
    """Return ``value`` as in a JSON file, shortened."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
