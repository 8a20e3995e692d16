"""Files that a script saves by ``torch.save``, as numbers: their keys, and norms of what lies under these.

A file is known by its name without digits (``model_epoch3.pt`` is ``model_epoch#.pt``): names that hold a metric or the
date are the same on both sides. Of values that are neither numbers nor tensors, only the key counts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

_DEPTH = 20
_ADDED = frozenset({"local_rank"})
"""The argument of launchers that a conversion adds to a script, and which is saved with ``vars(args)``."""


def name_of(file: object) -> str:
    """Return the name of a file that ``torch.save`` writes, without digits."""
    name = Path(os.fsdecode(file)).name if isinstance(file, str | bytes | os.PathLike) else getattr(file, "name", "")
    return re.sub(r"\d+", "#", Path(name).name if isinstance(name, str) and name else "a buffer")


def is_pickled_storage(saved: object) -> bool:
    """Return whether ``torch.save`` was called by pickle, for a tensor's memory, as to send it to other ranks."""
    return isinstance(saved, torch.UntypedStorage | torch.TypedStorage)


def values_in(saved: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield what is saved: the path of each value, and numbers that describe it."""
    if isinstance(saved, torch.nn.Module):
        saved = saved.state_dict()
    if isinstance(saved, Mapping) and depth < _DEPTH:
        for key, value in saved.items():
            if key not in _ADDED:
                yield from values_in(value, f"{path}.{key}" if path else str(key), depth + 1)
    elif isinstance(saved, list | tuple) and depth < _DEPTH:
        for number, value in enumerate(saved):
            yield from values_in(value, f"{path}[{number}]", depth + 1)
    else:
        yield path, _described(saved)


def _described(value: Any) -> Any:
    """Return a number as it is, and a tensor as its norm, a number that depends on its order, and bytes an element."""
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf":
        value = torch.from_numpy(np.array(value))
    if isinstance(value, torch.Tensor):
        if value.is_sparse or value.is_quantized:
            return 0.0
        real = torch.view_as_real(value.detach().resolve_conj()) if value.is_complex() else value.detach()
        flat = real.to("cpu", torch.float64).flatten()
        in_order = flat @ torch.linspace(0, 1, len(flat), dtype=torch.float64)
        return [float(flat.norm()), float(in_order), value.element_size()]
    if isinstance(value, bool | int | float):
        return float(value) if abs(value) < 2**53 else 0.0
    return 0.0
