"""The process of the stand-in for Python: has a server fork the command line, passes signals on, ends as the fork ends.

Most of its time is its own start, many hundred times a test run: it takes 0.02 s of CPU time, and three times that with
``json``, ``signal`` and ``socket``, of which it imports what is written in C. It does what
:class:`ds_verify.fork_server.ForkedProcess` does.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]
import _socket as socket
import os
import struct
import sys
from _json import encode_basestring_ascii as quoted

_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def run(address: str, executable: str, arguments: list[str]) -> int:
    """Return the exit code of the process; end by the signal that ended it.

    Args:
        address: where the server takes requests.
        executable: what the process is to take for Python.
        arguments: the command line of ``python``.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)  # until they can be passed on
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(address)
    variables = ", ".join(f"{quoted(name)}: {quoted(value)}" for name, value in os.environ.items())
    words = ", ".join(map(quoted, arguments))
    request = f"[[{words}], {{{variables}}}, {quoted(os.getcwd())}, {quoted(executable)}]".encode()  # noqa: PTH109
    streams = (socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("3i", 0, 1, 2))
    connection.sendmsg([struct.pack("!i", len(request))], [streams])
    connection.sendall(request)
    if not _receive(connection):
        sys.exit(f"the fork server could not start a process: {connection.recv(1 << 16).decode()}")
    for number in _PASSED_ON:
        signal.signal(number, lambda number, _: _pass_on(connection, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
    code = _receive(connection, -signal.SIGKILL)
    if code < 0:
        if code != -signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def _pass_on(connection: socket.socket, number: int) -> None:
    try:
        connection.send(bytes([number]))
    except OSError:  # the process has ended meanwhile
        return


def _receive(connection: socket.socket, when_the_server_is_gone: int = 0) -> int:
    content = connection.recv(4, socket.MSG_WAITALL)
    return struct.unpack("!i", content)[0] if content else when_the_server_is_gone


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], sys.argv[2], sys.argv[3:]))
