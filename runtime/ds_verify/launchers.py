"""What starts the ranks of a verification: forks of one server on a CPU, fresh processes on GPUs."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

from ds_verify.fork_server import ForkServer, FreshProcesses, Launcher

_COMMON = ("torch", "torch._dynamo", "torch.utils.tensorboard", "deepspeed")
"""What any training run imports, nearly all of its start-up time. Importing DeepSpeed changes nothing of torch's."""

_CONVERTED = ("deepspeed.runtime.zero.muon.muon_optimizer",)
"""What DeepSpeed's engine imports when it is made: it calls torch.compile, whose backends (2 s) change torch.optim,
torch.jit and torch.distributions. The original never sees that. The runtime's own modules patch DeepSpeed, so every
process imports them itself (0.2 s)."""

_DRIVERS = ("nvidia[0-9]*", "kfd", "dxg")


@dataclass(frozen=True)
class Launchers:
    """What starts the ranks of either side."""

    original: Launcher
    converted: Launcher


@functools.cache
def launchers_for(device: str) -> Launchers:
    """Return what starts ranks on ``"cpu"`` or ``"cuda"``; on a CPU one server for the life of this process."""
    if device != "cpu":
        return Launchers(FreshProcesses(), FreshProcesses())
    server = ForkServer(_COMMON)
    return Launchers(server, server.extended(_CONVERTED))


def has_gpu_driver() -> bool:
    """Return whether torch could see a GPU; where it could not, asking it is not worth its import."""
    return any(True for name in _DRIVERS for _ in Path("/dev").glob(name))
