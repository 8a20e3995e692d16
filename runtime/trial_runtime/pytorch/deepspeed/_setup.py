"""DeepSpeed on any machine: plain ``python`` or a launcher, CPU or GPU, no MPI, no compiler."""

from __future__ import annotations

import logging
import os
import warnings
from typing import Any

import torch

if hasattr(torch, "accelerator") and not torch.accelerator.is_available():  # since torch 2.6
    os.environ.setdefault("DS_ACCELERATOR", "cpu")  # else DeepSpeed warns that it found nothing better

import deepspeed
import deepspeed.ops
import torch.distributed as dist

from trial_runtime import core


def quieten() -> None:
    """Let DeepSpeed's messages start at warnings, and drop those that its own calls of torch cause."""
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    for renamed in ("all_gather_into_tensor", "reduce_scatter_tensor", "_all_gather_base", "_reduce_scatter_base"):
        warnings.filterwarnings("ignore", message=rf".*{renamed}.*", category=FutureWarning)


def start(distributed: core.DistributedContext) -> None:
    """Bring up DeepSpeed's communication for these ranks. Collective; does nothing where it is up."""
    # On Linux DeepSpeed compiles a shared-memory library for CPU here. Gloo does the same work without a compiler.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    own = {
        "RANK": distributed.rank,
        "WORLD_SIZE": distributed.size,
        "LOCAL_RANK": distributed.local_rank,
        "LOCAL_SIZE": distributed.local_size,
    }
    for name, value in own.items():
        os.environ.setdefault(name, str(value))  # the engine reads them
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    if not dist.is_initialized():
        if distributed.size == 1:
            stores: Any = dist  # torch does not list HashStore among its exports
            dist.init_process_group(backend, store=stores.HashStore(), rank=0, world_size=1)
        else:
            dist.init_process_group(backend)
    deepspeed.init_distributed(dist_backend=backend, auto_mpi_discovery=False, verbose=False)
