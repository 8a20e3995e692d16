"""DeepSpeed on any machine: plain ``python`` or a launcher, CPU or GPU, no MPI, no compiler."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import deepspeed
import torch
import torch.distributed as dist

from trial_runtime import core
from trial_runtime._ranks import LOOPBACK, free_port
from trial_runtime.pytorch.deepspeed._patches import applied_to_run


@contextlib.contextmanager
def started(distributed: core.DistributedContext, is_init_manual: bool = False) -> Iterator[None]:
    """Set DeepSpeed up for these ranks: communication started, patches applied. Collective.

    With `is_init_manual` communication is left to the trial, whose ``deepspeed.init_distributed()`` or
    ``torch.distributed.init_process_group()`` finds all variables that it reads.

    The variables that engines read (``RANK`` and the like) are set inside, where no launcher set them, and removed
    afterwards: a process started later must not take itself for a rank. The process group stays.
    """
    own: dict[str, int | str] = {
        "RANK": distributed.rank,
        "WORLD_SIZE": distributed.size,
        "LOCAL_RANK": distributed.local_rank,
        "LOCAL_SIZE": distributed.local_size,
    }
    if is_init_manual and distributed.size == 1:
        own |= {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": free_port()}
    with applied_to_run(), _environment({name: str(value) for name, value in own.items()}):
        if is_init_manual:
            yield
            return
        backend = "nccl" if torch.cuda.is_available() else "gloo"
        if not dist.is_initialized():
            if distributed.size == 1:
                stores: Any = dist  # torch does not list HashStore among its exports
                dist.init_process_group(backend, store=stores.HashStore(), rank=0, world_size=1)
            else:
                dist.init_process_group(backend)
        deepspeed.init_distributed(dist_backend=backend, auto_mpi_discovery=False, verbose=False)
        yield


@contextlib.contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Set the variables that are not set, for as long as this lasts."""
    added = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name, value in added.items():
            if os.environ.get(name) == value:  # otherwise the trial set it again
                del os.environ[name]
