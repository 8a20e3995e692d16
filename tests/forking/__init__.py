"""A process that imports torch and deepspeed once and forks Python processes which have them.

An import of both takes seconds, a fork takes milliseconds. A fork runs a command line as a new ``python`` would, in a
session of its own: environment, working directory, standard streams, ``sys.path``, ``__main__``, signal handlers and
random numbers are new. What the imported modules have read from the environment is the server's: give the server
itself ``CUDA_VISIBLE_DEVICES`` and the like.

A process is one stream socket. The client sends the request with its three streams; the server answers with the
process id and, at the end, with the return code. Each byte that the client sends later is a signal; a closed socket
kills the process and its group.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from forking.client import ForkedProcess

__all__ = ["TRAINING_MODULES", "ForkServer", "ForkedProcess"]

TRAINING_MODULES = (
    "deepspeed",
    "deepspeed.module_inject.auto_ep_layer",
    "deepspeed.ops.op_builder.all_ops",
    "deepspeed.runtime.zero.muon.muon_optimizer",
    "distutils.ccompiler",
    "functorch.compile",
    "torch._dynamo",
    "torch.distributed.run",
    "torch.utils.tensorboard",
    "trial_runtime.pytorch.deepspeed",
    "trial_runtime.train.config.run_plan",
)
"""What a training of one step imports; those below torch and deepspeed they import themselves when an optimizer or an
engine is made (2.5 of 6 CPU seconds)."""


class ForkServer:
    """The server, which ends with this process at the latest, and all of its forks with it."""

    def __init__(
        self,
        modules: Sequence[str],
        environment: Mapping[str, str] | None = None,
        listener: socket.socket | None = None,
    ) -> None:
        """Start the server; the first fork waits until it has imported the modules.

        Args:
            modules: names of modules to import, without those that are not installed.
            environment: of the server; this process's when None.
            listener: a listening Unix socket on which it takes other clients' requests as well.
        """
        self._control, theirs = socket.socketpair()
        handles = [] if listener is None else [listener.fileno()]
        command = "import sys; sys.path[0] = sys.argv.pop(1); from forking.server import main; main()"
        self._process: subprocess.Popen[bytes] = subprocess.Popen(
            [sys.executable, "-c", command, str(Path(__file__).parents[1]), ",".join(modules), *map(str, handles)],
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,  # what modules print when they are imported
            env=environment,
            pass_fds=handles,
            start_new_session=True,
        )
        theirs.close()

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self._process.pid

    def start(
        self, arguments: Sequence[str], *, environment: Mapping[str, str], directory: str, streams: Sequence[int]
    ) -> ForkedProcess:
        """Fork a process; the arguments are those of ForkedProcess."""
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._control, [b"."], [theirs.fileno()])
        return ForkedProcess(ours, arguments, environment=environment, directory=directory, streams=streams)

    def close(self) -> None:
        """End the server and kill what it forked."""
        self._control.close()
        self._process.wait()

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()
