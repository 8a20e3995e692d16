"""Recording and saving on rank 0, and the stand-ins of the other ranks."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist


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


def wait_for_all_ranks() -> None:
    """Wait until all ranks are here, so that what rank 0 has saved is there. Collective."""
    if dist.is_initialized():
        dist.barrier()
