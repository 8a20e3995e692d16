"""Launchers of the ranks of a verification: forks of one server on a CPU, fresh processes on GPUs."""

from __future__ import annotations

import functools
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from trial_runtime._ranks import Process, PythonProcess

from ds_verify.fork_server import ForkServer

PRELOAD = (
    "torch._dynamo",
    "torch.utils.tensorboard",
    "deepspeed",
    "ds_verify.first_imports",
    "rich.progress",
    "trial_runtime.train.run.hang_watch",
    "trial_runtime.train.run.rank",
    "trial_runtime.pytorch",
)
"""What any training run imports, nearly all of its start-up time. Importing these changes nothing of torch's and
DeepSpeed's. The runtime's ``pytorch.deepspeed`` patches DeepSpeed, so a process that needs it imports it itself."""

_DRIVERS = ("nvidia[0-9]*", "kfd", "dxg")


class Launcher(Protocol):
    """Starts processes: a :class:`ForkServer` or :class:`FreshProcesses`."""

    def start(self, command: Sequence[str], *, environment: Mapping[str, str], directory: Path, log: Path) -> Process:
        """Start a process in a new session, its standard input empty.

        Args:
            command: of ``python``: ``[-u] -m MODULE ...``, ``-c CODE ...`` or ``SCRIPT ...``.
            environment: all variables of the process.
            directory: the working directory.
            log: the file that receives stdout and stderr; an existing one is replaced.

        Raises:
            ServerError: the fork server is gone.
        """

    def wait(self, seconds: float) -> None:
        """Wait until a process ends, at most so many seconds."""


class FreshProcesses:
    """Starts each process with a new Python, a :class:`Launcher`."""

    def start(self, command: Sequence[str], *, environment: Mapping[str, str], directory: Path, log: Path) -> Process:
        """Start a new Python; see :class:`Launcher`."""
        with log.open("wb") as output:
            return PythonProcess(
                command,
                environment,
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def wait(self, seconds: float) -> None:
        """Wait so many seconds."""
        time.sleep(seconds)


@functools.cache
def launcher_for(device: str) -> Launcher:
    """Return what starts ranks on ``"cpu"`` or ``"cuda"``; on a CPU one server for the life of this process."""
    return ForkServer(PRELOAD) if device == "cpu" else FreshProcesses()


def has_gpu_driver() -> bool:
    """Return whether torch could see a GPU; where it could not, asking it is not worth its import."""
    return any(True for name in _DRIVERS for _ in Path("/dev").glob(name))
