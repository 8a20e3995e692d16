"""The process that :mod:`ds_verify.fork_server` starts: ``python -m ds_verify.fork_server_process SOCKET MODULE...``.

Single-threaded, so that a fork has nothing to lose. A forked child returns out of the server's loop and runs its module
at the top of the stack, so that it ends as any Python does.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15


@dataclass
class _Server:
    """The server's loop. children: process ids by the client's number for them; extended servers have negative ones."""

    channel: socket.socket
    wakeup: socket.socket
    children: dict[int, int] = field(default_factory=dict)
    received: bytes = b""

    def serve(self) -> Mapping[str, Any] | None:
        """Serve until the client is gone; in a forked child, return its order."""
        while True:
            ready, _, _ = select.select([self.channel, self.wakeup], [], [])
            if self.wakeup in ready:
                if signal.SIGTERM in self.wakeup.recv(1 << 12):
                    self._end()
                    return None
                self._reap()
            if self.channel not in ready:
                continue
            try:
                received, files, _, _ = socket.recv_fds(self.channel, 1 << 16, 1)
            except ConnectionResetError:
                received, files = b"", []
            if not received:
                self._end()
                return None
            *lines, self.received = (self.received + received).split(b"\n")
            for line in lines:
                message = json.loads(line)
                if "kill" in message:
                    _kill(self.children.get(message["kill"]))
                elif self._fork(message.get("start", -1 - len(self.children))):
                    return {**message, "files": files}
                for file in files:
                    os.close(file)

    def _fork(self, number: int) -> bool:
        """Return True in the child."""
        server = os.getpid()
        pid = os.fork()
        if pid:
            self.children[number] = pid
            self._send({"of": number, "pid": pid})
            return False
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != server:
            os._exit(1)
        os.setsid()
        return True

    def _reap(self) -> None:
        for number, pid in list(self.children.items()):
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
                continue
            _kill(pid)  # what it leaves behind; its id is taken until it is reaped
            _, status = os.waitpid(pid, 0)
            del self.children[number]
            self._send({"of": number, "code": os.waitstatus_to_exitcode(status)})

    def _end(self) -> None:
        """Kill the children with everything they started, and wait for their end."""
        for number, pid in self.children.items():
            if number < 0:
                os.kill(pid, signal.SIGTERM)  # a server, which does the same
            else:
                _kill(pid)
        for pid in self.children.values():
            os.waitpid(pid, 0)

    def _send(self, message: Mapping[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the loop reads the end of the channel next
            self.channel.sendall(json.dumps(message).encode() + b"\n")


def _prctl(option: int, value: int | bytes) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _kill(pid: int | None) -> None:
    if pid is None:
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):  # it may not lead its group yet
        os.kill(pid, signal.SIGKILL)


def main() -> None:
    """Import the modules, then serve; does not return before the client is gone."""
    name = Path("/proc/self/comm").read_bytes().strip()
    _prctl(_PR_SET_NAME, b"ds-fork-server")  # what ps and top show
    own_path = _python_path(os.environ)
    rest = [entry for entry in sys.path[1:] if entry not in own_path]
    order = _serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
    while order is not None and "extend" in order:
        order = _serve(socket.socket(fileno=order["files"][0]), order["extend"])
    if order is None:
        os._exit(0)
    _prctl(_PR_SET_NAME, name)
    _become(order, rest)
    runpy.run_module(order["module"], run_name="__main__", alter_sys=True)


def _serve(channel: socket.socket, preload: Sequence[str]) -> Mapping[str, Any] | None:
    """Import modules and serve one client until it is gone; in a forked child, return its order."""
    os.set_inheritable(channel.fileno(), False)
    try:
        for module in preload:
            importlib.import_module(module)
        if problem := _unfit():
            raise RuntimeError(problem)
    except BaseException:
        channel.sendall(json.dumps({"problem": traceback.format_exc()}).encode() + b"\n")
        return None
    gc.collect()
    gc.freeze()  # or the first collection of each child would copy every page
    ends = socket.socketpair()
    for end in ends:
        end.setblocking(False)
    defaults = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGCHLD, signal.SIGTERM)}
    signal.set_wakeup_fd(ends[1].fileno())
    order = _Server(channel, ends[0]).serve()
    signal.set_wakeup_fd(-1)
    for number, default in defaults.items():
        signal.signal(number, default)
    for each in (channel, *ends):
        each.close()
    return order


def _unfit() -> str:
    """Return why this process cannot be forked; empty when it can."""
    tasks = Path("/proc/self/task")
    threads = len(list(tasks.iterdir())) if tasks.is_dir() else 1
    if threads > 1:
        return f"the imports have started {threads - 1} threads"
    torch: Any = sys.modules.get("torch")
    return "the imports have initialised CUDA" if torch is not None and torch.cuda.is_initialized() else ""


def _become(order: Mapping[str, Any], rest: list[str]) -> None:
    """Give this fork what a fresh process has."""
    null = os.open(os.devnull, os.O_RDONLY)
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(null)
    os.close(log)
    os.chdir(order["directory"])
    os.environ.clear()
    os.environ.update(order["environment"])
    time.tzset()
    sys.argv = [order["module"], *order["arguments"]]
    sys.path[:] = [order["directory"], *_python_path(os.environ), *rest]
    importlib.invalidate_caches()
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()  # Python's own generator is seeded anew in a fork
    torch: Any = sys.modules.get("torch")
    if torch is not None and (threads := os.environ.get("OMP_NUM_THREADS", "")).isdecimal():
        torch.set_num_threads(max(1, int(threads)))


def _python_path(environment: Mapping[str, str]) -> list[str]:
    entries = environment.get("PYTHONPATH", "").split(os.pathsep)
    return [str(Path(entry).absolute()) for entry in entries if entry]


if __name__ == "__main__":
    main()
