"""Files that a script saves by ``torch.save``, as numbers: their keys, and norms of what lies under these.

A file is known by its name without digits (``model_epoch3.pt`` is ``model_epoch#.pt``): names that hold a metric or the
date are the same on both sides, and so are names with a part of ``uuid4()``. Of values that are neither numbers nor
tensors, only the key counts.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from ds_verify.record import Key, Record

_DEPTH = 20
_DRAWN = re.compile(r"(?<![0-9a-zA-Z])[0-9a-f]{8,}(-[0-9a-f]{4,})*(?![0-9a-zA-Z])|\d+")
"""What another run may name otherwise: numbers, and those in hexadecimal digits that are drawn at random."""
_ADDED = frozenset({"local_rank"})
"""The argument of launchers that a conversion adds to a script, and which is saved with ``vars(args)``."""


@dataclass
class SavedFiles:
    """The checkpoints that a script writes while it is watched.

    Attributes:
        record: of the values in them, on rank 0.
        rank: of this process.
        place: returns the step that has been trained last.
        last: the step after which one was written last.
        counts: how often each file was written, at each step.
        paths: of the files, on this rank.
        has_engine_checkpoint: whether an engine wrote one, in a form that the other side does not have.
    """

    record: Record
    rank: int
    place: Callable[[], int]
    last: int = 0
    counts: dict[tuple[str, int], int] = field(default_factory=dict)
    paths: set[str] = field(default_factory=set)
    has_engine_checkpoint: bool = False

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Record what ``torch.save`` writes in the block."""
        save = torch.save

        @functools.wraps(save)
        def saved(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
            save(obj, f, *args, **kwargs)
            if is_pickled_storage(obj):
                return
            self.last = self.place()
            if isinstance(f, str | os.PathLike) and Path(f).is_file():
                self.paths.add(str(Path(f).resolve()))
            if self.rank == 0:
                self._add(name_of(f), obj)

        with mock.patch.object(torch, "save", saved):
            yield

    def watched_engine_save(self, save: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``save_checkpoint()`` of an engine, which is noted here."""

        @functools.wraps(save)
        def saved(*args: Any, **kwargs: Any) -> Any:
            self.has_engine_checkpoint = True
            result = save(*args, **kwargs)
            self.last = self.place()
            return result

        return saved

    def _add(self, file: str, obj: Any) -> None:
        step = self.place()
        count = self.counts[file, step] = self.counts.get((file, step), 0) + 1
        name = file if count == 1 else f"{file} ({count})"
        for path, value in values_in(obj):
            self.record.add(Key("saved", step, f"{name}: {path}"), value)


def name_of(file: object) -> str:
    """Return the name of a file that ``torch.save`` writes, without digits, and without names that ``uuid`` makes."""
    name = Path(os.fsdecode(file)).name if isinstance(file, str | bytes | os.PathLike) else getattr(file, "name", "")
    return _DRAWN.sub("#", Path(name).name if isinstance(name, str) and name else "a buffer")


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
