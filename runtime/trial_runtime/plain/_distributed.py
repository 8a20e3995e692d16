"""The ranks of a script, however it is started."""

from __future__ import annotations

import atexit
import contextlib
import os

import deepspeed
import torch
import torch.distributed as dist

from trial_runtime._ranks import free_port, rank_variables
from trial_runtime.plain import _random_state
from trial_runtime.pytorch.deepspeed._patches import applied_to_run, apply_to_process

_PATCHES: list[contextlib.ExitStack] = []  # in force until the script ends


def init_distributed(*, share_random_state: bool = True) -> None:
    """Start the ranks of a script under ``python``, ``torchrun`` or ``deepspeed``, on GPUs or CPUs. Collective.

    Under ``python`` there is one rank. The current device is that of the rank from then on. No MPI is looked for, and
    nothing is compiled. Again it does nothing.

    Args:
        share_random_state: whether all ranks draw the random numbers of rank 0 from then on, as a script expects that
            was written for one process: what it divides or makes at random is the same on each rank.
    """
    apply_to_process()
    if not _PATCHES:
        _PATCHES.append(contextlib.ExitStack())
        _PATCHES[0].enter_context(applied_to_run())
        atexit.register(_PATCHES[0].close)
    if "RANK" not in os.environ:
        os.environ.update({**rank_variables(0, 1, free_port()), **os.environ})
    os.environ.setdefault("LOCAL_RANK", os.environ["RANK"])
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank())
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    if not dist.is_initialized():
        dist.init_process_group(backend)
        if share_random_state:
            _random_state.share_random_state()
    deepspeed.init_distributed(dist_backend=backend, auto_mpi_discovery=False, verbose=False)


def local_rank() -> int:
    """Return the number of this rank on its machine, 0 without a launcher."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def is_main_rank() -> bool:
    """Return whether this rank reports and saves: rank 0."""
    return (dist.get_rank() if dist.is_initialized() else int(os.environ.get("RANK", "0"))) == 0
