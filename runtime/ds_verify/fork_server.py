"""Processes that start with torch and DeepSpeed imported: one server imports them once, each rank is a fork of it.

Importing both costs seconds of CPU time in every process; a fork of the server starts in milliseconds::

    server = ForkServer(preload=["torch", "deepspeed"])
    ranks = [
        server.start("package.module", ["argument"], environment={**os.environ, "RANK": "0"}, directory=folder, log=log)
        for log in logs
    ]
    while any(rank.poll() is None for rank in ranks):
        server.wait(0.1)  # returns early when a rank ends
    server.close()  # kills the ranks that are left, with everything they started

A rank runs ``python -m package.module argument`` with the session, environment, working directory, ``sys.path``,
``sys.argv``, signal handlers and random seeds of a fresh process; stdin is empty, its output goes to ``log``. Modules
that are not preloaded are imported by the rank alone. Two things differ from a fresh process: ``PYTHONHASHSEED`` is the
server's, and numpy's BLAS has one thread (torch has as many as ``OMP_NUM_THREADS``).

The server never initialises CUDA, which does not survive a fork, and sees no GPU (``CUDA_VISIBLE_DEVICES=""``): ranks
on GPUs are fresh processes, :class:`FreshProcesses`, which has the same methods.

Nothing outlives its starter. The server and its ranks are killed when this process ends in any way, ``kill -9``
included (the server reads the end of its socket), and the ranks are killed when the server dies (Linux).
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol


class ServerError(RuntimeError):
    """The fork server cannot start processes: its imports failed, it has threads, or it was killed."""


class Process(Protocol):
    """One started process."""

    @property
    def pid(self) -> int:
        """The process id, which is the id of its session and process group too."""

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while the process runs."""

    def kill(self) -> None:
        """Kill the process and everything in its process group, and wait for its end."""


class Launcher(Protocol):
    """Starts processes: a :class:`ForkServer` or :class:`FreshProcesses`."""

    def start(
        self, module: str, arguments: Sequence[str], *, environment: Mapping[str, str], directory: Path, log: Path
    ) -> Process:
        """Start ``python -m module arguments`` in a new session.

        Args:
            module: the module to run as ``__main__``.
            arguments: its command line.
            environment: all variables of the process.
            directory: the working directory.
            log: the file that receives stdout and stderr; an existing one is replaced.

        Raises:
            ServerError: the server is gone.
        """

    def wait(self, seconds: float) -> None:
        """Wait until a process ends, at most so many seconds."""


class ForkServer:
    """A process that has imported modules and forks ranks from itself.

    The constructor returns at once; the first :meth:`start` waits for the imports.

    Args:
        preload: the modules to import, in this order. They must not start threads.
        environment: the server's variables (default: this process's), with ``OMP_NUM_THREADS`` 1 and GPUs hidden.
    """

    def __init__(self, preload: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        theirs = self._connect()
        variables = {**(os.environ if environment is None else environment)}
        variables |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "ds_verify.fork_server_process", str(theirs.fileno()), *preload],
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is this process's to handle
            )

    _process: subprocess.Popen[bytes] | None = None  # of an extended server, the first one is the parent

    def _connect(self) -> socket.socket:
        self._socket, theirs = socket.socketpair()
        self._codes: dict[int, int] = {}
        self._pids: dict[int, int] = {}
        self._received = b""
        self._problem = ""
        self._started = 0
        atexit.register(self.close)
        return theirs

    def extended(self, preload: Sequence[str]) -> ForkServer:
        """Return a server that is forked from this one and then imports more modules.

        What those modules change in the modules of this server, its processes alone see.
        """
        server = ForkServer.__new__(ForkServer)
        with server._connect() as theirs:
            self._send({"extend": list(preload)}, theirs.fileno())
        return server

    def start(
        self, module: str, arguments: Sequence[str], *, environment: Mapping[str, str], directory: Path, log: Path
    ) -> Process:
        """Fork a process from the server; see :class:`Launcher`."""
        number = self._started
        self._started += 1
        self._send(
            {
                "start": number,
                "module": module,
                "arguments": list(arguments),
                "environment": dict(environment),
                "directory": str(directory),
                "log": str(log),
            }
        )
        while number not in self._pids:
            self._receive(None)
            if self._problem:
                raise ServerError(self._problem)
        return _Forked(self, number, self._pids[number])

    def wait(self, seconds: float) -> None:
        """Wait until a process ends, at most so many seconds."""
        if self._problem:
            time.sleep(seconds)
        else:
            self._receive(seconds)

    def close(self) -> None:
        """Kill all processes and the server, and wait for the server's end."""
        atexit.unregister(self.close)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
            while self._socket.recv(1 << 16):
                pass
        self._socket.close()
        self._problem = self._problem or "the fork server is closed"
        if self._process is not None:
            self._process.wait()

    def _code(self, number: int) -> int | None:
        if number not in self._codes and not self._problem:
            self._receive(0)
        return self._codes.get(number, -signal.SIGKILL if self._problem else None)

    def _kill(self, number: int) -> None:
        if self._code(number) is None:
            with contextlib.suppress(ServerError):
                self._send({"kill": number})
        while self._code(number) is None:
            self._receive(None)

    def _send(self, message: Mapping[str, Any], *files: int) -> None:
        if self._problem:
            raise ServerError(self._problem)
        try:
            self._socket.sendall(json.dumps(message).encode())
            socket.send_fds(self._socket, [b"\n"], files)
        except OSError:
            while not self._problem:  # the server may have said why
                self._receive(None)
            raise ServerError(self._problem) from None

    def _receive(self, seconds: float | None) -> None:
        """Take in the messages that are there, or wait for one."""
        if not select.select([self._socket], [], [], seconds)[0]:
            return
        try:
            received = self._socket.recv(1 << 16)
        except ConnectionResetError:
            received = b""
        if not received:
            self._problem = self._problem or "the fork server was killed"
        *lines, self._received = (self._received + received).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if "pid" in message:
                self._pids[message["of"]] = message["pid"]
            elif "code" in message:
                self._codes[message["of"]] = message["code"]
            else:
                self._problem = message["problem"]


class _Forked:
    """A process that the server forked."""

    def __init__(self, server: ForkServer, number: int, pid: int) -> None:
        self._server, self._number, self.pid = server, number, pid

    def poll(self) -> int | None:
        return self._server._code(self._number)

    def kill(self) -> None:
        self._server._kill(self._number)


class FreshProcesses:
    """Starts each process with a new Python."""

    def start(
        self, module: str, arguments: Sequence[str], *, environment: Mapping[str, str], directory: Path, log: Path
    ) -> Process:
        """Start a new Python; see :class:`Launcher`."""
        with log.open("wb") as stream:
            return _Fresh(
                subprocess.Popen(
                    [sys.executable, "-m", module, *arguments],
                    env=dict(environment),
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=subprocess.STDOUT,
                    cwd=directory,
                    start_new_session=True,
                )
            )

    def wait(self, seconds: float) -> None:
        """Wait so many seconds."""
        time.sleep(seconds)


class _Fresh:
    """A process of its own Python."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process, self.pid = process, process.pid

    def poll(self) -> int | None:
        return self._process.poll()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
