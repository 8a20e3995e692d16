"""DeepSpeed on any machine: plain ``python`` or a launcher, CPU or GPU, no MPI, no compiler."""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Iterator
from typing import Any

import torch

if hasattr(torch, "accelerator") and not torch.accelerator.is_available():  # since torch 2.6
    os.environ.setdefault("DS_ACCELERATOR", "cpu")  # else DeepSpeed warns that it found nothing better

import deepspeed
import deepspeed.ops
import torch.distributed as dist
from deepspeed.runtime.dataloader import RepeatingLoader

from trial_runtime import core
from trial_runtime.pytorch.deepspeed._engine import initialize
from trial_runtime.pytorch.deepspeed._patches import adagrad, initial_step, jit_notice, parameter_broadcast


def quieten() -> None:
    """Let DeepSpeed's messages start at warnings, and drop those that its own calls of torch cause."""
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    for renamed in ("all_gather_into_tensor", "reduce_scatter_tensor", "_all_gather_base", "_reduce_scatter_base"):
        warnings.filterwarnings("ignore", message=rf".*{renamed}.*", category=FutureWarning)


def measure_repeating_loaders() -> None:
    """Give DeepSpeed's RepeatingLoader the length of the loader inside, as Determined did: a loader without a length
    has no epochs."""
    kind: Any = RepeatingLoader
    if not hasattr(kind, "__len__"):
        kind.__len__ = lambda self: len(self.loader)


@contextlib.contextmanager
def started(distributed: core.DistributedContext) -> Iterator[None]:
    """DeepSpeed ready for these ranks: communication up, configs checked, no step before the first. Collective.

    The variables that engines read (``RANK`` and the like) are set inside, where no launcher set them, and gone
    afterwards: a process started later must not take itself for a rank. The process group stays.
    """
    # On Linux DeepSpeed compiles a shared-memory library for CPU here. Gloo does the same work without a compiler.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    own = {
        "RANK": distributed.rank,
        "WORLD_SIZE": distributed.size,
        "LOCAL_RANK": distributed.local_rank,
        "LOCAL_SIZE": distributed.local_size,
    }
    with _environment({name: str(value) for name, value in own.items()}):
        backend = "nccl" if torch.cuda.is_available() else "gloo"
        if not dist.is_initialized():
            if distributed.size == 1:
                stores: Any = dist  # torch does not list HashStore among its exports
                dist.init_process_group(backend, store=stores.HashStore(), rank=0, world_size=1)
            else:
                dist.init_process_group(backend)
        deepspeed.init_distributed(dist_backend=backend, auto_mpi_discovery=False, verbose=False)
        with (
            initialize.checked(),
            jit_notice.told(),
            initial_step.not_taken_early(),
            adagrad.kept(),
            parameter_broadcast.broadcast(),
        ):
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
            if os.environ.get(name) == value:  # else somebody set it for reasons of their own
                del os.environ[name]
