"""A stand-in for ``sys.executable`` that has imported torch and deepspeed, where a start is not what is tested.

It is a script that has a fork server run the command line, passes signals on, and ends as that process ends (see
forked_client.py). What that process starts by its own ``sys.executable`` is forked as well.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ds_verify.fork_server import ForkedProcess

_CLIENT = str(Path(__file__).resolve().with_name("forked_client.py"))
_PRELOAD = (
    "torch.distributed.run",
    "deepspeed.ops.op_builder.all_ops",
    "distutils.ccompiler",
    "trial_runtime.pytorch.deepspeed",
    "trial_runtime.train.config.run_plan",
    "fsspec.implementations.local",
    "pytest",
)
"""What a training of one step imports, past what ds-verify's server has. Some of it torch and deepspeed import when an
optimizer or an engine is made. Files of tests, whose functions run on ranks, import pytest."""

# A fork of ds-verify's server becomes a server itself, with modules that patch DeepSpeed: ds-verify's ranks must not
# have them from the start. torchrun names events that nothing reads after the line that reports them, which takes it a
# second of CPU time among so many modules.
_SERVER = """
import socket, sys
from torch.distributed.elastic.rendezvous import dynamic_rendezvous
dynamic_rendezvous.get_method_name = lambda depth=2: ""
from ds_verify.fork_server_process import main
control, listener = (socket.socket(socket.AF_UNIX) for _ in range(2))
listener.bind(sys.argv[2])
listener.listen(64)
control.connect(sys.argv[1])
sys.argv[1:3] = [f"{control.detach()},{listener.detach()}"]
main()
"""

_started: list[tuple[Path, Path, socket.socket]] = []


def start_forked(
    command: Sequence[str], *, environment: Mapping[str, str], directory: Path, log: Path
) -> ForkedProcess:
    """Start a process as :meth:`ds_verify.fork_server.ForkServer.start` does. It trains on the CPU."""
    from ds_verify.fork_server import ForkedProcess

    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(_server()[0]))
    with log.open("wb") as output, Path(os.devnull).open("rb") as nothing:
        streams = [stream.fileno() for stream in (nothing, output, output)]
        return ForkedProcess(connection, command, environment, str(directory), streams)


def forked_python() -> str:
    """Return the path of the stand-in."""
    return str(_server()[1])


def _server() -> tuple[Path, Path, socket.socket]:
    """Return where the server takes requests, the stand-in, and what the server ends with (as with this process)."""
    if not _started:
        _started.append(_start())
    return _started[0]


def _start() -> tuple[Path, Path, socket.socket]:
    import atexit
    import shlex
    import tempfile

    from ds_verify.launchers import launcher_for

    folder = tempfile.TemporaryDirectory(prefix="python-", dir="/tmp")  # a socket's path must be short
    atexit.register(folder.cleanup)
    script, address, meeting = (Path(folder.name, name) for name in ("python", "socket", "control"))
    words = [sys.executable, "-I", "-S", _CLIENT, str(address), str(script)]
    script.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    script.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    environment |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONUNBUFFERED": ""}
    command = ["-c", _SERVER, str(meeting), str(address), *_PRELOAD]
    with socket.socket(socket.AF_UNIX) as waiting:
        waiting.bind(str(meeting))
        waiting.listen()
        log = Path(folder.name, "log")
        launcher_for("cpu").start(command, environment=environment, directory=Path.cwd(), log=log)
        return address, script, waiting.accept()[0]
