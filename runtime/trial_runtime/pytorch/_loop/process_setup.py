"""Setup of a process as a rank: process group and seeds."""

from __future__ import annotations

import atexit
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist

from trial_runtime import core
from trial_runtime.pytorch._data import rng, sampler_rng_sync
from trial_runtime.pytorch._loop.settings import RunSettings


@contextlib.contextmanager
def run_session(
    distributed: core.DistributedContext | None, settings: RunSettings, is_init_manual: bool = False
) -> Iterator[core.DistributedContext]:
    """Provide the ranks of this run, seeded.

    A process group that was made here stays for the next session of this process, and goes at the process's end.

    Args:
        distributed: the ranks; None: those that the environment describes.
        settings: of the run.
        is_init_manual: make no process group; the trial does.
    """
    if distributed is None and is_init_manual:
        several = int(os.environ.get("WORLD_SIZE", "1")) > 1
        distributed = core.DistributedContext.from_deepspeed() if several else core.DummyDistributedContext()
        distributed._use_launcher_store()
    if distributed is None:
        if not dist.is_initialized() and int(os.environ.get("WORLD_SIZE", "1")) > 1:
            dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
            atexit.register(_destroy_process_group)
        several = dist.is_initialized() and dist.get_world_size() > 1
        distributed = core.DistributedContext.from_torch_distributed() if several else core.DummyDistributedContext()
    sampler_rng_sync.begin_run()
    try:
        _seed(distributed, settings)
        # One place for all, wherever a rank was started and whatever directory the trial changes to.
        directory = distributed.broadcast(str(settings.checkpoint_directory.absolute()))
        settings.checkpoint_directory = Path(directory)
        yield distributed
    except BaseException:
        atexit.unregister(_destroy_process_group)  # the other ranks might wait for something
        raise
    finally:
        distributed.close()


def _destroy_process_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def _seed(distributed: core.DistributedContext, settings: RunSettings) -> None:
    """Give every rank the same generators: as configured, else as the script left the chief's."""
    if settings.seed is not None:
        rng.seed_everything(settings.seed)
    elif distributed.size > 1:
        rng.set_state(distributed.broadcast(rng.get_state(device=False)))
        if torch.cuda.is_available():
            torch.cuda.manual_seed(torch.initial_seed())
