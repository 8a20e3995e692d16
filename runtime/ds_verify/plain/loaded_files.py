"""Files that a script loads on several ranks that know nothing of each other: all of them load the first one's.

A conversion has rank 0 alone save, and each rank loads what it saved. In the reference each rank saves a file, with the
buffers that its share of the data gave. The n-th ``torch.load`` of a file gives each rank what the first one loads
there.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch

_POLL_SECONDS = 0.005


class LoadedFiles:
    """The files below a rank's copy of a script that it loads.

    Args:
        home: the rank's copy. shared: a folder that all ranks see. rank: of this process.
        applies: returns whether the ranks know nothing of each other.
    """

    def __init__(self, home: Path, shared: Path, rank: int, applies: Callable[[], bool]) -> None:
        self._home, self._shared, self._rank, self._applies = home, shared, rank, applies
        self._counts = Counter[str]()
        self._backwards = 0

    def advance(self) -> None:
        """Note a backward, where ranks wait for each other, or the end: the first rank loads nothing before it."""
        self._backwards += 1
        if self._rank == 0:
            self._shared.mkdir(exist_ok=True)
            with (self._shared / "backwards").open("ab") as count:
                count.write(b".")

    def _has_passed(self) -> bool:
        count = self._shared / "backwards"
        return count.is_file() and count.stat().st_size > self._backwards

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Have all ranks load what the first one loads, for the block."""
        load = torch.load

        @functools.wraps(load)
        def loaded(f: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(f, str | os.PathLike) and self._applies():
                f = self._of_first_rank(Path(f)) or f
            return load(f, *args, **kwargs)

        with mock.patch.object(torch, "load", loaded):
            yield

    def _of_first_rank(self, path: Path) -> Path | None:
        """Return the copy of a file as the first rank loads it; None where it does not, or no run has written it."""
        place = Path(os.path.abspath(path))  # noqa: PTH100  # resolve() would follow a link, which leads to data
        if not place.is_relative_to(self._home) or not place.is_file() or place.is_symlink():
            return None
        name = str(place.relative_to(self._home)).replace(os.sep, "--")
        self._counts[name] += 1
        copy = self._shared / f"{self._counts[name]}-{name}"
        if self._rank == 0:
            self._shared.mkdir(exist_ok=True)
            shutil.copyfile(place, copy.with_suffix(".part"))
            copy.with_suffix(".part").rename(copy)
        while not copy.is_file():
            if self._has_passed() and not copy.is_file():
                return None
            time.sleep(_POLL_SECONDS)
        return copy
