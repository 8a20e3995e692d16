"""The ranks of a script, however it is started."""

from __future__ import annotations

import atexit
import contextlib
import os
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from multiprocessing import current_process
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from trial_runtime._ranks import free_port, rank_variables
from trial_runtime.errors import InvalidExperimentException
from trial_runtime.plain import _random_state
from trial_runtime.plain._groups import keep_empty_groups
from trial_runtime.plain._hash_seed import share_hash_seed
from trial_runtime.plain._written_files import watch_written_files
from trial_runtime.pytorch.deepspeed._patches import applied_to_run, apply_to_process

_PATCHES: list[contextlib.ExitStack] = []  # in force until the script ends
_NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_REST = 0.1  # seconds
_ALONE = "TRIAL_RUNTIME_ALONE"  # the process that has started without a launcher, and its port; commands inherit it


def _leave_other_script() -> None:
    """Remove the variables by which another script made itself the only rank, and which this command inherits."""
    process, _, port = os.environ.get(_ALONE, "").partition(":")
    if process not in ("", str(os.getpid())) and os.environ.get("MASTER_PORT") == port:  # no launcher between them
        for name in (_ALONE, *rank_variables(0, 1, 0)):
            os.environ.pop(name, None)


_leave_other_script()
_LAUNCHED = {name: os.environ[name] for name in _NAMES if "RANK" in os.environ and name in os.environ}


def init_distributed(
    world_size: int | None = None,
    rank: int | None = None,
    *,
    backend: str | None = None,
    share_random_state: bool = True,
    timeout: timedelta | None = None,
) -> None:
    """Start the ranks of a script under ``python``, ``torchrun`` or ``deepspeed``, on GPUs or CPUs. Collective.

    Under ``python`` there is one rank. The current device is that of the rank from then on. Beside GPUs collectives go
    through NCCL, and those on tensors of the CPU, as torchmetrics has them, through gloo. No MPI is looked for, and
    nothing is compiled. Where ranks meet is for the launcher to choose: ``MASTER_ADDR`` and ``MASTER_PORT`` that the
    script has set are set back. Again it does nothing, but for a script that has set another ``WORLD_SIZE`` by then.

    Ranks hash strings alike, so that sets have one order: :func:`share_hash_seed` tells how.

    A loader's process that runs the top of the script again (``spawn``, ``forkserver``) is no rank: it starts alone.

    Args:
        world_size: number of ranks that the script counts on; None or a negative number where it does not know.
        rank: number of this rank in the script's own count; None or a negative number where it does not know.
        backend: name that the script compares with ``dist.get_backend()``: "nccl" starts NCCL alone beside GPUs.
        share_random_state: whether all ranks draw the random numbers of rank 0 from then on, as a script expects that
            was written for one process: what it divides or makes at random is the same on each rank.

    Raises:
        InvalidExperimentException: the launcher has started another number of ranks, or counts them otherwise.
    """
    if _is_started():
        if not _LAUNCHED:
            _check("the world size", int(os.environ.get("WORLD_SIZE", "1")), dist.get_world_size())
        return
    os.environ.update(_LAUNCHED)
    _check("the world size", world_size, int(os.environ.get("WORLD_SIZE", "1")))
    _check("the number of this rank", rank, int(os.environ.get("RANK", "0")))
    if _LAUNCHED and not dist.is_initialized():
        share_hash_seed()
    apply_to_process()
    if not _PATCHES:
        _PATCHES.append(contextlib.ExitStack())
        _PATCHES[0].enter_context(applied_to_run())
        _PATCHES[0].enter_context(keep_empty_groups())
        atexit.register(_PATCHES[0].close)
    if "RANK" not in os.environ:
        is_there = dist.is_initialized()  # between processes that the script has started itself
        number, size = (dist.get_rank(), dist.get_world_size()) if is_there else (0, 1)
        os.environ.update({**rank_variables(number, size, free_port()), **os.environ})
        if not is_there:
            os.environ[_ALONE] = f"{os.getpid()}:{os.environ['MASTER_PORT']}"
        elif torch.cuda.is_available():
            os.environ["LOCAL_RANK"] = str(torch.cuda.current_device())
    os.environ.setdefault("LOCAL_RANK", os.environ["RANK"])
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank())
    is_rank = not _imports_script()
    on_gpu = "nccl" if backend is not None and backend.lower() == "nccl" else "cpu:gloo,cuda:nccl"
    started = on_gpu if is_rank and torch.cuda.is_available() else "gloo"
    if not dist.is_initialized():
        alone: dict[str, Any] = {} if is_rank else {"store": HashStore(), "rank": 0, "world_size": 1}
        dist.init_process_group(started, timeout=timeout, **alone)
        atexit.register(_end_gloo)
        if share_random_state:
            _random_state.share_random_state()
    if is_rank and int(os.environ["WORLD_SIZE"]) > 1:
        watch_written_files()
    deepspeed.init_distributed(dist_backend=started, auto_mpi_discovery=False, verbose=False)


def run_worker(fn: Callable[..., object], args: Iterable[object] = (), nprocs: int = 1) -> None:
    """Call the function of one rank in this process, which a launcher has started for it.

    It takes the place of ``torch.multiprocessing.spawn``: ``fn`` gets the index of this rank on its machine, then
    ``args``, and torch's random generators are those of a new process.

    Args:
        fn: the function of one rank.
        args: its arguments after the index.
        nprocs: number of ranks on each machine that the script counts on.

    Raises:
        InvalidExperimentException: the launcher has started another number of ranks on this machine.
    """
    started = os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("LOCAL_SIZE")
    if started is not None or "RANK" not in _LAUNCHED:
        _check("the number of ranks on this machine", nprocs, int(started or "1"))
    torch.manual_seed(torch.Generator().initial_seed())
    fn(local_rank(), *args)


def local_rank(alone: int | None = None) -> int:
    """Return the number of this rank on its machine, as a launcher gives it, 0 without one.

    Args:
        alone: what to return where there is one rank in all: -1 for scripts that count ranks only where there are
            several.
    """
    if alone is not None and int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return alone
    return int(os.environ.get("LOCAL_RANK", "0"))


def global_rank(alone: int = 0) -> int:
    """Return the number of this rank among all, as a launcher gives it.

    Args:
        alone: what to return where there is one rank in all.
    """
    return int(os.environ["RANK"]) if int(os.environ.get("WORLD_SIZE", "1")) > 1 else alone


def is_main_rank() -> bool:
    """Return whether this rank reports and saves: rank 0. A process of a loader is of the rank that started it."""
    is_one_of_several = dist.is_initialized() and dist.get_world_size() > 1
    return (dist.get_rank() if is_one_of_several else int(os.environ.get("RANK", "0"))) == 0


def _check(what: str, wanted: int | None, started: int) -> None:
    """Refuse a launcher's number that differs from the script's own: batch sizes and samplers are made of that."""
    if wanted is not None and wanted >= 0 and wanted != started:
        raise InvalidExperimentException(
            f"{what} is {wanted} by the script's own arguments, and {started} by its launcher: start the script with "
            "as many ranks as it expects (torchrun --nproc-per-node=N), or change its arguments"
        )


def _end_gloo() -> None:
    """End gloo's groups, or let their threads come to rest: they abort a process that ends right after an operation.

    Torch 2.13 aborted ranks in 4 of 10 runs of a script of 20 broadcasts on busy cores, and a launcher then kills the
    rank that still saves. NCCL's groups stay, and gloo's beside them: their end may wait for other ranks.
    """
    if dist.is_initialized() and dist.get_backend() == "gloo":
        dist.destroy_process_group()
    elif dist.is_initialized():
        time.sleep(_REST)


def _imports_script() -> bool:
    """Return whether this process imports the script of the one that started it, to run a function of that alone."""
    return getattr(current_process(), "_inheriting", False)


def _is_started() -> bool:
    return dist.is_initialized() and bool(_PATCHES)
