"""Random number generators: seeding, and their states in checkpoints."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch


def seed_everything(seed: int) -> None:
    """Seed python, numpy and torch (all devices)."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def get_state(device: bool = True) -> dict[str, Any]:
    """Return the states of Python's, numpy's and torch's generators; with ``device`` also the current accelerator's."""
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.random.get_rng_state(),
    }
    if device and torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_state(state: dict[str, Any]) -> None:
    """Set the generators to a state that :func:`get_state` gave."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.random.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether two states of the host generators are equal."""
    numpys = all(np.array_equal(a, b) for a, b in zip(one["numpy"], other["numpy"], strict=True))
    return numpys and one["python"] == other["python"] and torch.equal(one["torch"], other["torch"])


def to_json(state: dict[str, Any]) -> str:
    """Return a state of the host generators as JSON; floats keep every bit."""
    name, keys, *rest = state["numpy"]
    fields = {"python": state["python"], "numpy": [name, keys.tolist(), *rest], "torch": state["torch"].tolist()}
    return json.dumps(fields)


def from_json(text: str) -> dict[str, Any]:
    """Return the state that :func:`to_json` wrote.

    Raises:
        ValueError: the text is something else.
    """
    try:
        fields = json.loads(text)
        version, internal, gauss = fields["python"]
        name, keys, position, has_gauss, cached = fields["numpy"]
        return {
            "python": (int(version), tuple(map(int, internal)), None if gauss is None else float(gauss)),
            "numpy": (str(name), np.array(keys, dtype=np.uint32), int(position), int(has_gauss), float(cached)),
            "torch": torch.tensor(fields["torch"], dtype=torch.uint8),
        }
    except (KeyError, TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise ValueError(f"this is no state of random generators: {text[:60]!r}") from error


@contextlib.contextmanager
def preserved() -> Iterator[None]:
    """Leave the host generators as they were, whatever is drawn inside."""
    state = get_state(device=False)
    try:
        yield
    finally:
        set_state(state)
