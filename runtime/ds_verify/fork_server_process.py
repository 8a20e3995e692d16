"""The process of a fork server: ``python -m ds_verify.fork_server_process SOCKET[,LISTENER] MODULE...``.

A forked process is one stream socket. The client sends its request with the three streams of the process; the server
answers with the process id (or 0 and a text, when it cannot fork) and, at the end, with the exit code. Each byte that
the client sends later is a signal; the end of what it sends kills the process and its group.

Single-threaded, so that a fork has nothing to lose. A forked child returns out of the server's loop and runs its
command at the top of the stack.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from ds_verify.fork_server import NUMBER

_HASH_SEED = os.environ.get("PYTHONHASHSEED", "0")
_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 15, 36


@dataclass
class _Request:
    """The work of one fork."""

    command: Sequence[str]
    environment: dict[str, str]
    directory: str
    executable: str
    streams: Sequence[int]


@dataclass
class _Server:
    """The server's loop. sockets: the client's and a listener. running: the connections, by process id."""

    sockets: Sequence[socket.socket]
    problem: str
    running: dict[int, socket.socket] = field(default_factory=dict)

    def serve(self) -> _Request | None:
        """Serve until the client is gone; in a forked child, return its request."""
        wakeup, woken = socket.socketpair()
        woken.setblocking(False)
        former = signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(woken.fileno())
        with selectors.DefaultSelector() as self.selector:
            for each in (wakeup, *self.sockets):
                self.selector.register(each, selectors.EVENT_READ)
            request = self._loop(wakeup)
        if request is not None:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, former)
            for each in (wakeup, woken, *self.sockets, *self.running.values()):
                each.close()
        return request

    def _loop(self, wakeup: socket.socket) -> _Request | None:
        while True:
            for key, _ in self.selector.select():
                if key.fileobj is wakeup:
                    wakeup.recv(1 << 12)
                    self._reap()
                elif key.data is not None:
                    self._obey(key.data)
                else:
                    connection = self._accept(is_client=key.fileobj is self.sockets[0])
                    if connection is None:
                        self._end()
                        return None
                    if request := self._fork(connection):
                        return request

    def _accept(self, is_client: bool) -> socket.socket | None:
        """Return the connection of a new process; None when the client is gone."""
        if not is_client:
            return self.sockets[1].accept()[0]
        _, files, _, _ = socket.recv_fds(self.sockets[0], 1, 1)
        return socket.socket(fileno=files[0]) if files else None

    def _fork(self, connection: socket.socket) -> _Request | None:
        """Return the request in the child."""
        head, streams, _, _ = socket.recv_fds(connection, NUMBER.size, 3)
        content = connection.recv(NUMBER.unpack(head)[0], socket.MSG_WAITALL) if head else b""
        if self.problem or not content:
            _send(connection, NUMBER.pack(0) + self.problem.encode())
            connection.close()
            return None
        command, environment, directory, executable = json.loads(content)
        request = _Request(command, environment, directory, executable, streams)
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            connection.close()
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != server:
                os._exit(1)
            os.setsid()
            return request
        for stream in streams:
            os.close(stream)
        self.running[pid] = connection
        self.selector.register(connection, selectors.EVENT_READ, pid)
        _send(connection, NUMBER.pack(pid))
        return None

    def _obey(self, pid: int) -> None:
        if pid not in self.running:
            return
        try:
            signals = self.running[pid].recv(16)
        except OSError:
            signals = b""
        for number in signals:
            os.kill(pid, number)
        if not signals:
            self.selector.unregister(self.running[pid])
            _kill(pid)

    def _reap(self) -> None:
        for pid in list(self.running):
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
                continue
            if len(self.sockets) == 1:
                _kill(pid)  # what it leaves behind; its id is taken until it is reaped
            _, status = os.waitpid(pid, 0)
            connection = self.running.pop(pid)
            with contextlib.suppress(KeyError):
                self.selector.unregister(connection)
            _send(connection, NUMBER.pack(os.waitstatus_to_exitcode(status)))
            connection.close()

    def _end(self) -> None:
        """Kill the children with everything in their groups, and wait for their end."""
        for pid in self.running:
            _kill(pid)
        for pid in self.running:
            os.waitpid(pid, 0)
        _kill_orphans()


def _send(connection: socket.socket, answer: bytes) -> None:
    with contextlib.suppress(OSError):  # the client may be gone
        connection.sendall(answer)


def _prctl(option: int, value: int | bytes) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _kill(pid: int) -> None:
    for kill in (os.killpg, os.kill):  # it may not lead its group yet
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def _kill_orphans() -> None:
    """Kill what forked processes left in sessions of their own; this process has adopted it."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    with contextlib.suppress(OSError):
        while pids := children.read_text().split():
            for pid in map(int, pids):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def main() -> None:
    """Import the modules, then serve until the client is gone; in a forked child, run its command."""
    name = Path("/proc/self/comm").read_bytes().strip()
    _prctl(_PR_SET_NAME, b"ds-fork-server")  # what ps and top show
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    sockets, *preload = sys.argv[1:]
    own_path = _python_path(os.environ.get("PYTHONPATH", ""))
    rest = [entry for entry in sys.path[1:] if entry not in own_path]
    connections = [socket.socket(fileno=int(number)) for number in sockets.split(",")]
    for connection in connections:
        os.set_inheritable(connection.fileno(), False)
    problem = _import(preload)
    _forget_finalizers()
    gc.collect()
    gc.freeze()  # or the first collection of each child would copy every page
    request = _Server(connections, problem).serve()
    if request is None:
        os._exit(0)
    _prctl(_PR_SET_NAME, name)
    _become(request)
    _run(list(request.command), rest)


def _import(modules: Sequence[str]) -> str:
    """Import modules; return why this process cannot be forked, empty when it can."""
    try:
        for module in modules:
            importlib.import_module(module)
    except BaseException:
        return traceback.format_exc()
    tasks = Path("/proc/self/task")
    if (threads := len(list(tasks.iterdir())) if tasks.is_dir() else 1) > 1:
        return f"the imports have started {threads - 1} threads"
    torch: Any = sys.modules.get("torch")
    return "the imports have initialised CUDA" if torch is not None and torch.cuda.is_initialized() else ""


def _forget_finalizers() -> None:
    """Spare each fork what the imports want done at its end, as torch does for 170 libraries of operators: 0.04 s."""
    finalizers: Any = weakref.finalize
    for each in finalizers._registry:
        each.atexit = False


def _become(request: _Request) -> None:
    """Give this fork what a fresh process has."""
    for target, stream in enumerate(request.streams):
        os.dup2(stream, target)
        os.close(stream)
    os.chdir(request.directory)
    os.environ.clear()
    os.environ.update(request.environment)
    os.environ["PYTHONHASHSEED"] = _HASH_SEED  # which all forks have: no rank starts again for one
    time.tzset()
    sys.executable = request.executable or sys.executable
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    importlib.invalidate_caches()
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()  # Python's own generator is seeded anew in a fork
    torch: Any = sys.modules.get("torch")
    if torch is not None and (threads := os.environ.get("OMP_NUM_THREADS", "")).isdecimal():
        torch.set_num_threads(max(1, int(threads)))


def _python_path(value: str) -> list[str]:
    return [str(Path(entry).absolute()) for entry in value.split(os.pathsep) if entry]


def _run(command: list[str], path: Sequence[str]) -> NoReturn:
    """Run a command line of ``python`` in this process and end it.

    Modules are not torn down: that would copy every page which the fork shares with the server.
    """
    is_unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    while command[0] == "-u":
        is_unbuffered, command = True, command[1:]
    sys.stdout.reconfigure(line_buffering=is_unbuffered or os.isatty(1), write_through=is_unbuffered)  # type: ignore[union-attr]
    sys.path[:] = ["", *_python_path(os.environ.get("PYTHONPATH", "")), *path]
    code = _exit_code(command)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    if code == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code & 0xFF)


def _exit_code(command: Sequence[str]) -> int:
    try:
        _execute(command)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and Path(trace.tb_frame.f_code.co_filename) == Path(__file__):
            trace = trace.tb_next
        traceback.print_exception(type(error), error, trace)
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _execute(command: Sequence[str]) -> None:
    first, *arguments = command
    sys.modules["__main__"] = main_module = ModuleType("__main__")
    if first == "-m":
        module, *arguments = arguments
        sys.argv = ["-m", *arguments]
        sys.path[0] = str(Path.cwd())
        sys.modules.pop(module, None)  # runpy warns of one that was imported before
        runpy._run_module_as_main(module)  # type: ignore[attr-defined]
    elif first == "-c":
        code, *arguments = arguments
        sys.argv = ["-c", *arguments]
        exec(compile(code, "<string>", "exec"), vars(main_module))
    else:
        sys.argv = [first, *arguments]
        sys.path[0] = str(Path(first).resolve().parent)
        main_module.__file__ = first
        exec(compile(Path(first).read_bytes(), first, "exec"), vars(main_module))


if __name__ == "__main__":
    main()
