"""One process that imports torch and deepspeed for all workers of pytest-xdist: their fork servers are forks of it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import leftovers
from ds_verify import launchers
from ds_verify.fork_server import ForkedProcess, ForkServer

_ADDRESS = "DS_MIGRATE_TESTS_FORK_SERVER"
_SERVE = "from ds_verify.fork_server_process import main; main()"
_SERVE_ONCE_ASKED = f"""
import select, sys
control, listener = map(int, sys.argv[1].split(","))
if listener in select.select([control, listener], [], [])[0]:
    import gc
    gc.set_threshold(50_000, 20, 100)  # of all forks: a rank's youngest objects are nearly all modules
    {_SERVE}
"""
_LIBRARIES = ("requests", "filelock", "yaml")  # of the determined package, which ranks of originals import
_VARIABLES = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONUNBUFFERED": ""}


class SharedForkServer:
    """The process, with its address in the environment; it imports when a worker first asks, and ends with this one."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="server-", dir="/tmp")  # a socket's path must be short
        os.environ[_ADDRESS] = str(Path(self._folder.name, "socket"))
        self._control, theirs = socket.socketpair()
        with theirs, socket.socket(socket.AF_UNIX) as listener:
            listener.bind(os.environ[_ADDRESS])
            listener.listen(64)
            sockets = (theirs.fileno(), listener.fileno())
            command = [sys.executable, "-c", _SERVE_ONCE_ASKED, ",".join(map(str, sockets))]
            command += [*launchers.PRELOAD, *_LIBRARIES]
            self._process = subprocess.Popen(
                command, env={**os.environ, **_VARIABLES}, pass_fds=sockets, stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip

    def close(self) -> None:
        """End the process, with all its forks."""
        self._control.close()
        self._process.wait()
        self._folder.cleanup()


class _WorkersForkServer(ForkServer):
    """A worker's fork server; :class:`ForkServer` has its interface."""

    def __init__(self, preload: Sequence[str]) -> None:
        self._control, theirs = socket.socketpair()
        self._running = []
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(os.environ[_ADDRESS])
        environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
        with theirs, Path(os.devnull).open("wb") as nothing:
            # Its standard input is the socket that it serves.
            self._server = ForkedProcess(
                connection, ["-c", _SERVE, "0", *preload], {**environment, **_VARIABLES}, str(Path.cwd()),
                [theirs.fileno(), nothing.fileno(), nothing.fileno()],
            )  # fmt: skip
        leftovers.ROOTS.add(str(self._server.pid))

    def close(self) -> None:
        """Kill all processes and the server, and wait for the server's end."""
        self._control.close()
        self._server.wait()


def join() -> None:
    """Let this worker's fork server be a fork of the shared one, where there is one."""
    if _ADDRESS in os.environ:
        vars(launchers)["ForkServer"] = _WorkersForkServer
