"""Ranks of one machine: the variables that describe them, and their processes, which are watched and ended together."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

LOOPBACK = "127.0.0.1"


def rank_variables(rank: int, size: int, port: int | None = None) -> dict[str, str]:
    """Return the environment variables by which ``torchrun`` describes one of ``size`` ranks of this machine.

    Args:
        rank: index of the rank.
        size: number of ranks.
        port: where the ranks meet, as ``MASTER_PORT``; None leaves out the address too.
    """
    index, count = str(rank), str(size)
    variables = {
        "RANK": index, "LOCAL_RANK": index, "GROUP_RANK": "0", "ROLE_RANK": index, "ROLE_NAME": "default",
        "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "GROUP_WORLD_SIZE": "1", "ROLE_WORLD_SIZE": count,
    }  # fmt: skip
    return variables if port is None else {**variables, "MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(port)}


def without_ranks(environment: Mapping[str, str]) -> dict[str, str]:
    """Return variables without those that describe a rank, or the launcher's store."""
    described = (*rank_variables(0, 1, 0), "TORCHELASTIC_")
    return {name: value for name, value in environment.items() if not name.startswith(described)}


def free_port() -> int:
    """Return a port that nobody listens at now."""
    with socket.socket() as listener:
        listener.bind((LOOPBACK, 0))
        return int(listener.getsockname()[1])


class Process(Protocol):
    """One started process."""

    @property
    def pid(self) -> int:
        """The process id, which is the id of its session and process group too."""

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while the process runs."""

    def send_signal(self, number: int, /) -> None:
        """Send a signal to the process alone; nothing when it has ended."""

    def kill(self) -> None:
        """Kill the process and everything in its process group, and wait for its end."""


class PythonProcess(subprocess.Popen[bytes]):
    """A new Python in a separate session, a :class:`Process`: what a terminal sends to its group does not reach it.

    Args:
        command: of ``python``.
        environment: all variables of the process.
        options: as for :class:`subprocess.Popen`.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], **options: Any) -> None:
        super().__init__([sys.executable, *command], env=dict(environment), start_new_session=True, **options)

    def kill(self) -> None:
        """Kill the process and everything in its process group, and wait for its end."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()


class RankProcesses:
    """The processes of one run, a rank each.

    Args:
        start: starts a rank.
        size: number of ranks.

    Raises:
        BaseException: what ``start`` raised; the ranks before it are killed.
    """

    def __init__(self, start: Callable[[int], Process], size: int) -> None:
        self._processes: list[Process] = []
        try:
            for rank in range(size):
                self._processes.append(start(rank))
        except BaseException:
            self.kill()
            raise

    def codes(self) -> list[int | None]:
        """Return the exit codes, ordered by rank; None for a rank that runs."""
        return [process.poll() for process in self._processes]

    def are_over(self) -> bool:
        """Return whether all ranks have ended, or one has failed: the others would wait for it."""
        codes = self.codes()
        return None not in codes or any(codes)

    def terminate(self) -> None:
        """Send SIGTERM to the ranks that run."""
        for process in self._processes:
            process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the ranks with everything that they started, and wait for their end."""
        for process in self._processes:
            process.kill()
