"""What starts the ranks of a verification: forks of one server on a CPU, fresh processes on GPUs."""

from __future__ import annotations

import functools
from pathlib import Path

from ds_verify.fork_server import ForkServer, FreshProcesses, Launcher

_PRELOAD = ("torch", "torch._dynamo", "torch.utils.tensorboard", "deepspeed")
"""What any training run imports, nearly all of its start-up time. Importing DeepSpeed changes nothing of torch's. The
runtime's own modules patch DeepSpeed, so every process imports them itself (0.2 s)."""

_DRIVERS = ("nvidia[0-9]*", "kfd", "dxg")


@functools.cache
def launcher_for(device: str) -> Launcher:
    """Return what starts ranks on ``"cpu"`` or ``"cuda"``; on a CPU one server for the life of this process."""
    return ForkServer(_PRELOAD) if device == "cpu" else FreshProcesses()


def has_gpu_driver() -> bool:
    """Return whether torch could see a GPU; where it could not, asking it is not worth its import."""
    return any(True for name in _DRIVERS for _ in Path("/dev").glob(name))
