"""Processes that start with torch and DeepSpeed imported: one server imports them once, each process is a fork of it.

Importing both costs seconds of CPU time in every process; a fork of the server starts in milliseconds::

    server = ForkServer(preload=["torch", "deepspeed"])
    ranks = [
        server.start(["-m", "package.module"], environment={**os.environ, "RANK": "0"}, directory=folder, log=log)
        for log in logs
    ]
    while any(rank.poll() is None for rank in ranks):
        server.wait(0.1)  # returns early when a rank ends
    server.close()  # kills the ranks that are left, with everything they started

A process runs a command line of ``python`` with the session, environment, working directory, ``sys.path``,
``sys.argv``, signal handlers and random seeds of a fresh process. Modules that are not preloaded are imported by the
process alone. Four things differ from a fresh process: ``PYTHONHASHSEED`` is the server's (0 by default), numpy's BLAS
has one thread (torch has as many as ``OMP_NUM_THREADS``), unbuffered output (``-u``) is written line by line, and no
``weakref.finalize`` of a preloaded module is called at its end.

The server never initialises CUDA, which does not survive a fork, and sees no GPU (``CUDA_VISIBLE_DEVICES=""``): ranks
on GPUs are fresh processes, see :mod:`ds_verify.launchers`.

Nothing outlives its starter. The server and its processes are killed when this process ends in any way, ``kill -9``
included (the server reads the end of its socket), and the processes are killed when the server dies (Linux).

Nothing but the standard library is imported here: a client without site-packages starts quickly.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

NUMBER = struct.Struct("!i")
# What lies in the folder that this process was started in, such as a torch.py, is no module of the server.
_SERVER = f"import sys; sys.path[0] = {os.devnull!r}; from ds_verify.fork_server_process import main; main()"


class ServerError(RuntimeError):
    """The fork server cannot start processes: its imports failed, it has threads, or it was killed."""


class ForkServer:
    """A process that has imported modules and forks processes from itself.

    The constructor returns at once; the first :meth:`start` waits for the imports.

    Args:
        preload: the modules to import, in this order. They must not start threads.
        environment: the server's variables (default: this process's), with ``OMP_NUM_THREADS`` 1 and GPUs hidden.
        listener: a listening Unix socket on which other clients may start processes, each a :class:`ForkedProcess`.
            Such a server replaces Python: what a process leaves running when it ends, continues.
    """

    def __init__(
        self,
        preload: Sequence[str],
        environment: Mapping[str, str] | None = None,
        listener: socket.socket | None = None,
    ) -> None:
        self._control, theirs = socket.socketpair()
        self._running: list[ForkedProcess] = []
        sockets = [theirs.fileno(), *([] if listener is None else [listener.fileno()])]
        variables = {"PYTHONHASHSEED": "0", **(os.environ if environment is None else environment)}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _SERVER, ",".join(map(str, sockets)), *preload],
                env={**variables, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONUNBUFFERED": ""},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=sockets,
                start_new_session=True,  # Ctrl-C is this process's to handle
            )
        atexit.register(self.close)

    def start(
        self, command: Sequence[str], *, environment: Mapping[str, str], directory: Path, log: Path
    ) -> ForkedProcess:
        """Fork a process from the server; see :class:`ds_verify.launchers.Launcher`."""
        connection, theirs = socket.socketpair()
        with theirs, log.open("wb") as output, Path(os.devnull).open("rb") as nothing:
            try:
                socket.send_fds(self._control, [b"."], [theirs.fileno()])
            except OSError:
                connection.close()
                state = "is closed" if self._control.fileno() < 0 else "was killed"
                raise ServerError(f"the fork server {state}") from None
            theirs.close()
            streams = [stream.fileno() for stream in (nothing, output, output)]
            process = ForkedProcess(connection, command, environment, str(directory), streams)
        self._running.append(process)
        return process

    def wait(self, seconds: float) -> None:
        """Wait until a process ends, at most so many seconds."""
        self._running = [process for process in self._running if process.returncode is None]
        select.select(self._running, [], [], seconds)

    def close(self) -> None:
        """Kill all processes and the server, and wait for the server's end."""
        atexit.unregister(self.close)
        self._control.close()
        self._process.wait()


class ForkedProcess:
    """A process that a server forked. Constructing it sends the request, and waits for the fork.

    Args:
        connection: to the server, this process's own; it is closed when the process has ended.
        command, environment, directory: see :class:`ds_verify.launchers.Launcher`.
        streams: the file descriptors of its standard input, output and error.
        executable: its ``sys.executable``; the server's when empty.

    Raises:
        ServerError: the server is gone, or its imports failed.
    """

    def __init__(
        self,
        connection: socket.socket,
        command: Sequence[str],
        environment: Mapping[str, str],
        directory: str,
        streams: Sequence[int],
        executable: str = "",
    ) -> None:
        self._connection = connection
        self.returncode: int | None = None
        request = json.dumps([list(command), dict(environment), directory, executable]).encode()
        with contextlib.suppress(OSError):  # there will be no answer
            socket.send_fds(connection, [NUMBER.pack(len(request))], list(streams))
            connection.sendall(request)
        pid = self._receive()
        if not pid:
            with connection, connection.makefile("r") as answer:
                raise ServerError("the fork server was killed" if pid is None else answer.read())
        self.pid = pid

    def fileno(self) -> int:
        """Return the file descriptor that can be read when the process has ended."""
        return self._connection.fileno()

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code, negative for a signal.

        Raises:
            TimeoutError: it still runs after ``timeout`` seconds.
        """
        if self.returncode is None:
            if not select.select([self], [], [], timeout)[0]:
                raise TimeoutError(f"process {self.pid} still runs after {timeout} s")
            code = self._receive()
            self.returncode = -signal.SIGKILL if code is None else code  # it dies with its server
            self._connection.close()
        return self.returncode

    def poll(self) -> int | None:
        """Return the exit code; None while the process runs."""
        with contextlib.suppress(TimeoutError):
            return self.wait(0)
        return None

    def send_signal(self, number: int) -> None:
        """Send a signal to the process alone; nothing when it has ended."""
        if self.returncode is None:
            with contextlib.suppress(OSError):
                self._connection.send(bytes([number]))

    def kill(self) -> None:
        """Kill the process and everything in its process group, and wait for its end."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)
        self.wait()

    def _receive(self) -> int | None:
        """Return the number that the server sends next; None when it has died."""
        with contextlib.suppress(OSError):
            content = self._connection.recv(NUMBER.size, socket.MSG_WAITALL)
            return int(NUMBER.unpack(content)[0]) if content else None
        return None
