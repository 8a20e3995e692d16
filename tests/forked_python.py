"""A stand-in for ``sys.executable`` that has imported torch and deepspeed, where a start is not what is tested.

It is a script that has a fork server run the command line, passes signals on, and ends as that process ends. What that
process starts by its own ``sys.executable`` is forked as well. Run as a script, this module is the stand-in.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ds_verify.fork_server import ForkedProcess, ForkServer

_CLIENT = str(Path(__file__).resolve().parents[1] / "runtime/ds_verify/fork_server.py")
_PRELOAD = (
    "torch",
    "torch._dynamo",
    "torch.distributed.run",
    "torch.utils.tensorboard",
    "deepspeed",
    "deepspeed.module_inject.auto_ep_layer",
    "deepspeed.ops.op_builder.all_ops",
    "distutils.ccompiler",
    "trial_runtime.pytorch.deepspeed",
    "trial_runtime.train.config.run_plan",
    "fsspec.implementations.local",
    "pytest",
)
"""What a training of one step imports; some of it torch and deepspeed import when an optimizer or an engine is made.
Files of tests, whose functions run on ranks, import pytest."""

_started: list[tuple[ForkServer, str]] = []


def fork_server() -> ForkServer:
    """Return the server, which ends with this process. Its forks train on the CPU."""
    return _server_and_script()[0]


def forked_python() -> str:
    """Return the path of the stand-in."""
    return _server_and_script()[1]


def _server_and_script() -> tuple[ForkServer, str]:
    if not _started:
        _started.append(_start())
    return _started[0]


def _start() -> tuple[ForkServer, str]:
    import atexit
    import shlex
    import tempfile

    from ds_verify.fork_server import ForkServer

    folder = tempfile.TemporaryDirectory(prefix="python-", dir="/tmp")  # a socket's path must be short
    script, address = Path(folder.name, "python"), Path(folder.name, "socket")
    words = [sys.executable, "-I", "-S", __file__, str(address), str(script)]
    script.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    script.chmod(0o755)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(address))
    listener.listen(64)
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    server = ForkServer(_PRELOAD, environment, listener)
    listener.close()
    atexit.register(folder.cleanup)
    return server, str(script)


_PASSED_ON = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2}


def _run(address: str, script: str, arguments: list[str]) -> int:
    signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)  # until they can be passed on
    client = SourceFileLoader("client", _CLIENT).load_module()
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    forked: ForkedProcess = client.ForkedProcess(
        connection, arguments, os.environ, str(Path.cwd()), streams=(0, 1, 2), executable=script
    )
    for number in _PASSED_ON:
        signal.signal(number, lambda number, _: forked.send_signal(number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
    code = forked.wait()
    if code < 0:
        if code != -signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(_run(sys.argv[1], sys.argv[2], sys.argv[3:]))
