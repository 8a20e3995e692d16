"""A process that a fork server forked, seen from its client.

Nothing but the standard library is imported here, so that a client without site-packages starts quickly.
"""

from __future__ import annotations

import contextlib
import marshal
import socket
import struct
import subprocess
from collections.abc import Mapping, Sequence

LENGTH = struct.Struct("!I")
NUMBER = struct.Struct("!i")


class ForkedProcess:
    """A process that a server forked, with the interface of ``subprocess.Popen``."""

    def __init__(
        self,
        connection: socket.socket,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str],
        directory: str,
        streams: Sequence[int] = (0, 1, 2),
        executable: str = "",
    ) -> None:
        """Send the request.

        Args:
            connection: to the server.
            arguments: of ``python``: ``[-u] -m MODULE ...``, ``-c CODE ...`` or ``SCRIPT ...``.
            environment: all of its variables.
            directory: its working directory.
            streams: the file descriptors of its standard input, output and error.
            executable: its ``sys.executable``; the server's when empty.
        """
        self._connection = connection
        self.returncode: int | None = None
        request = marshal.dumps((list(arguments), dict(environment), directory, executable))
        socket.send_fds(connection, [LENGTH.pack(len(request))], list(streams))
        connection.sendall(request)
        self.pid = self._receive()

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit code, or minus the signal that ended it.

        Raises:
            subprocess.TimeoutExpired: it still runs after ``timeout`` seconds.
        """
        if self.returncode is None:
            self._connection.settimeout(timeout)
            try:
                self.returncode = self._receive()
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0) from None
            self._connection.close()
        return self.returncode

    def poll(self) -> int | None:
        """Return what wait() returns, None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def send_signal(self, number: int) -> None:
        """Send a signal to the process alone; nothing when it has ended."""
        if self.returncode is None:
            with contextlib.suppress(OSError):
                self._connection.send(bytes([number]))

    def kill(self) -> None:
        """Send SIGKILL to the process and to all of its group."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Kill it if it still runs."""
        self.kill()
        self.wait()

    def _receive(self) -> int:
        content = self._connection.recv(NUMBER.size, socket.MSG_WAITALL)
        if len(content) < NUMBER.size:
            raise ConnectionError("the fork server has ended")
        return int(NUMBER.unpack(content)[0])
