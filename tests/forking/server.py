"""The loop of the server."""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import marshal
import os
import selectors
import signal
import socket
import sys
from typing import Any

from forking.client import LENGTH, NUMBER
from forking.fork import become, run


class _Server:
    """The loop of the server, which returns in each fork."""

    def __init__(self, listener: socket.socket | None) -> None:
        self.control = socket.socket(fileno=os.dup(0))
        self.listener = listener
        self.wakeup, self.woken = socket.socketpair()
        self.selector = selectors.DefaultSelector()
        self.running: dict[int, socket.socket] = {}
        for ours in (self.control, self.wakeup, self.listener):
            if ours is not None:
                self.selector.register(ours, selectors.EVENT_READ)

    def serve(self) -> list[str] | None:
        """Return a fork's arguments in that fork, None in the server when its parent has ended."""
        self.woken.setblocking(False)
        signal.set_wakeup_fd(self.woken.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        while True:
            for key, _ in self.selector.select():
                if key.fileobj is self.wakeup:
                    self.wakeup.recv(4096)
                    self._reap()
                elif key.data is not None:
                    self._obey(key.data)
                else:
                    connection = self._connection(key.fileobj is self.control)
                    if connection is None:
                        for pid in self.running:
                            _kill_group(pid)
                        return None
                    arguments = self._fork(connection)
                    if arguments is not None:
                        return arguments

    def _connection(self, from_parent: bool) -> socket.socket | None:
        if not from_parent and self.listener is not None:
            return self.listener.accept()[0]
        _, handles, _, _ = socket.recv_fds(self.control, 1, 1)
        return socket.socket(fileno=handles[0]) if handles else None

    def _fork(self, connection: socket.socket) -> list[str] | None:
        head, streams, _, _ = socket.recv_fds(connection, LENGTH.size, 3)
        if len(head) < LENGTH.size:
            connection.close()
            return None
        arguments, environment, directory, executable = marshal.loads(
            connection.recv(LENGTH.unpack(head)[0], socket.MSG_WAITALL)
        )
        pid = os.fork()
        if pid == 0:
            self._release(connection)
            become(environment, directory, streams, executable)
            return list(arguments)
        for stream in streams:
            os.close(stream)
        self.running[pid] = connection
        self.selector.register(connection, selectors.EVENT_READ, pid)
        _answer(connection, pid)
        return None

    def _release(self, connection: socket.socket) -> None:
        """Leave the server's sockets to it."""
        signal.set_wakeup_fd(-1)
        self.selector.close()
        for ours in (self.control, self.listener, self.wakeup, self.woken, connection, *self.running.values()):
            if ours is not None:
                ours.close()
        self.running.clear()

    def _obey(self, pid: int) -> None:
        connection = self.running.get(pid)
        if connection is None:
            return
        try:
            numbers = connection.recv(16)
        except OSError:
            numbers = b""
        for number in numbers:
            os.kill(pid, number)
        if not numbers:
            self.selector.unregister(connection)
            _kill_group(pid)

    def _reap(self) -> None:
        for pid in [*self.running]:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                connection = self.running.pop(pid)
                with contextlib.suppress(KeyError):
                    self.selector.unregister(connection)
                _answer(connection, os.waitstatus_to_exitcode(status))
                connection.close()


def _answer(connection: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):  # the client may be gone
        connection.send(NUMBER.pack(number))


def _kill_group(pid: int) -> None:
    for kill in (os.kill, os.killpg):  # the group does not exist before setsid()
        with contextlib.suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)


class _CurrentStream:
    """Stands for ``sys.stdout`` or ``sys.stderr`` in a logger that an import has made: a fork has others."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(getattr(sys, self._name), name)


def _follow_streams() -> None:
    """Make loggers that write to this process's streams write to those of each fork."""
    for logger in [logging.root, *logging.root.manager.loggerDict.values()]:
        for handler in getattr(logger, "handlers", ()):
            for name in ("stdout", "stderr"):
                if getattr(handler, "stream", None) is getattr(sys, name):
                    handler.setStream(_CurrentStream(name))


def main() -> None:
    """Serve: ``MODULES [LISTENER]``, the control socket as standard input; in a fork, run that fork's command."""
    modules, *handles = sys.argv[1:]
    sys.path.pop(0)
    listener = socket.socket(fileno=int(handles[0])) if handles else None
    server = _Server(listener)
    for name in filter(None, modules.split(",")):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    _follow_streams()
    gc.collect()
    gc.freeze()  # a fork's collections would copy every page
    arguments = server.serve()
    if arguments is not None:
        run(arguments)
