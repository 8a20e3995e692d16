"""Recording and saving on rank 0, and the stand-ins of the other ranks."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import PurePath
from typing import Any, TypeVar

import torch.distributed as dist

from trial_runtime.plain._agreement import object_from_rank_0, world_size
from trial_runtime.plain._distributed import init_distributed, is_main_rank, local_rank
from trial_runtime.plain._random_state import share_random_state
from trial_runtime.plain._written_files import unwatched

Text = TypeVar("Text", bound="str | PurePath")
_LONGEST_WAIT = timedelta(days=30)
_meetings = itertools.count()


class NoTracker:
    """A tracker that takes any call and records nothing, in the place of a ``SummaryWriter`` and the like."""

    def __getattr__(self, name: str) -> NoTracker:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_: Any, **__: Any) -> NoTracker:
        return self

    def __getitem__(self, key: object) -> NoTracker:
        return self

    def __setitem__(self, key: object, value: object) -> None:
        pass

    def __enter__(self) -> NoTracker:
        return self

    def __exit__(self, *exception: object) -> None:
        pass


def rank_0_text(text: Text) -> Text:
    """Return rank 0's text or path, as the name of a folder that it makes of the time, on each rank. Collective."""
    _start_launched_ranks()
    return text if world_size() == 1 else object_from_rank_0(text)


@contextmanager
def rank_0_first() -> Iterator[None]:
    """Let rank 0 run a block before the others, as one that fetches or makes data where it is not there. Collective.

    The first rank of each other machine is next, then come all others: on a shared disk they find what rank 0 has made,
    else what their machine has. No rank leaves before all are through. All ranks draw rank 0's random numbers from
    then on, as it alone may have drawn some.
    """
    _start_launched_ranks()
    turn = 0 if is_main_rank() else 1 if local_rank() == 0 else 2
    try:
        for _ in range(turn):
            wait_for_all_ranks()
        with unwatched():
            yield
    finally:
        for _ in range(turn, 3):
            wait_for_all_ranks()
        share_random_state()


def wait_for_all_ranks() -> None:
    """Wait until all ranks are here, so that what rank 0 has saved is there. Collective.

    A rank may fetch data for longer than an operation of the process group lasts, which is 10 minutes with NCCL. So the
    ranks meet in the group's store first, which has no such limit.
    """
    if world_size() == 1:
        return
    store, meeting = dist.distributed_c10d._get_default_store(), f"trial_runtime.plain/meeting/{next(_meetings)}"
    if store.add(meeting, 1) == world_size():
        store.set(f"{meeting}/complete", "")
    store.wait([f"{meeting}/complete"], _LONGEST_WAIT)
    dist.barrier()  # the store's rank stays until all have left


def _start_launched_ranks() -> None:
    """Start the ranks of a launcher where the script has not yet: what it imports runs before its own lines."""
    is_launched = "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1
    if is_launched and not dist.is_initialized():
        init_distributed()
