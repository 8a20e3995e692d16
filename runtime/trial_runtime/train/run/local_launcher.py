"""Start the ranks of one machine, watch them, forward signals to them, start them again after a crash.

One rank is a plain child process, so a debugger and the terminal work as usual. Several are started by torch's elastic
launcher, the engine of ``torchrun``.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any
from weakref import WeakSet

from trial_runtime.train.config.errors import ConfigError
from trial_runtime.train.run.supervision import GRACE_SECONDS

USAGE_EXIT = 2
_SCHEDULERS = (signal.SIGUSR1, signal.SIGUSR2)  # what is sent before a time limit; a script may use them otherwise
_FORWARDED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
_SECOND_GRACE_SECONDS = 5  # a rank inside a long call of C++ reacts to no signal but SIGKILL


class Stopped(Exception):  # noqa: N818 - the end of a run, not an error
    """A signal to ``ds-train`` ended the run."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def run_ranks(
    arguments: Sequence[str],
    slots: int,
    environment: Mapping[str, str],
    max_restarts: int,
    before_start: Callable[[], object],
    report: Callable[[str], None],
) -> int:
    """Run ``python ARGUMENTS`` on ``slots`` ranks until they end.

    Args:
        arguments: of the Python that runs this process.
        slots: how many ranks; with more than one each gets torchrun's variables (``RANK``, ``WORLD_SIZE``...).
        environment: variables to add for the ranks.
        max_restarts: how often all ranks are started again after one failed. Wrong usage (exit code 2) is not retried.
        before_start: called before each start, the first one too.
        report: receives a line for the user.

    Returns:
        0 when all ranks ended well, else the exit code of the first that did not.

    Raises:
        Stopped: a signal ended the run.
        ConfigError: the machine has fewer GPUs than slots.
    """
    for attempt in range(max_restarts + 1):
        before_start()
        if slots == 1:
            code = _start_one(arguments, environment, report)
        else:
            code = _start_many(arguments, slots, environment, report)
        if code in (0, USAGE_EXIT) or attempt == max_restarts:
            return code
        report(f"started again from the latest checkpoint (restart {attempt + 1} of max_restarts {max_restarts})")
    raise AssertionError("unreachable")


def _start_one(arguments: Sequence[str], environment: Mapping[str, str], report: Callable[[str], None]) -> int:
    # Its own session: Ctrl-C reaches the rank once, through us, and not a second time from the terminal.
    command = [sys.executable, *arguments]
    with subprocess.Popen(command, env={**os.environ, **environment}, start_new_session=True) as child:
        with _forwarding(child) as received:
            code = child.wait()
        stops = [number for number in received if number not in _SCHEDULERS or code in (128 + number, -number)]
        if stops:
            raise Stopped(stops[0])
    if code < 0:
        report(f"rank 0 was ended by {signal.Signals(-code).name}")
        return 128 - code
    return code


@contextmanager
def _forwarding(child: subprocess.Popen[bytes]) -> Iterator[list[int]]:
    """Forward signals to ``child``, and kill it some seconds after the second one that ends a run; provide them all."""
    received: list[int] = []
    killer = threading.Timer(_SECOND_GRACE_SECONDS, _kill, [child])
    killer.daemon = True

    def forward(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        received.append(number)
        if number not in _SCHEDULERS and len([other for other in received if other not in _SCHEDULERS]) == 2:
            killer.start()
        child.send_signal(number)

    previous = {name: signal.signal(getattr(signal, name), forward) for name in _FORWARDED}
    try:
        yield received
    finally:
        for name, handler in previous.items():
            signal.signal(getattr(signal, name), handler)
        killer.cancel()


def _kill(child: subprocess.Popen[bytes]) -> None:
    """Kill a rank that still runs, with everything it started."""
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)


def _start_many(
    arguments: Sequence[str], slots: int, environment: Mapping[str, str], report: Callable[[str], None]
) -> int:
    # The launcher gives the ranks this process's own environment.
    os.environ.update(environment)
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // slots)))
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # else gloo listens at the machine's own address
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(GRACE_SECONDS))

    import torch
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    from trial_runtime.train.run import loopback_rendezvous

    visible = torch.cuda.device_count()
    if 0 < visible < slots:
        raise ConfigError(
            f"resources.slots_per_trial: {slots} slots, but this machine shows {visible} GPUs: use --slots {visible}, "
            f"or start ds-train on several machines with torchrun (CUDA_VISIBLE_DEVICES='' trains on the CPU)"
        )
    # The rank itself reports its error; the launcher's table would bury it. Its modules' loggers have separate levels.
    for name in [name for name in logging.root.manager.loggerDict if name.startswith("torch.distributed.elastic")]:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    loopback_rendezvous.register()
    _kill_after_second_signal()
    logs = tempfile.TemporaryDirectory(prefix="ds-train-")  # the launcher makes one anyway and leaves it behind
    config = LaunchConfig(
        logs_specs=DefaultLogsSpecs(log_dir=logs.name),
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=slots,
        run_id=f"ds-train-{os.getpid()}",
        rdzv_backend=loopback_rendezvous.NAME,
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        max_restarts=0,  # run_ranks counts them, the same way for one rank and for many
        **_handled_signals(LaunchConfig),
    )
    try:
        with logs:
            elastic_launch(config, sys.executable)(*arguments)
    except SignalException as stop:
        raise Stopped(int(stop.sigval)) from None
    except ChildFailedError as failed:
        # A rank that was killed is the cause, also where others noticed before the launcher looked.
        codes = {rank: int(failure.exitcode) for rank, failure in failed.failures.items()}
        killed = [rank for rank, code in codes.items() if code < 0 and code != -signal.SIGTERM]
        rank = killed[0] if killed else failed.get_first_failure()[0]
        code = codes[rank]
        if code < 0:
            report(f"rank {rank} was ended by {signal.Signals(-code).name}")
            return 128 - code
        report(f"rank {rank} ended with exit code {code}; the other ranks were stopped")
        return code
    return 0


def _handled_signals(config: type) -> dict[str, Any]:
    """Return the setting that has torch's launcher forward all signals; before torch 2.9 it has none."""
    has_setting = any(field.name == "signals_to_handle" for field in dataclasses.fields(config))
    return {"signals_to_handle": ",".join(_FORWARDED)} if has_setting else {}


@functools.cache
def _kill_after_second_signal() -> None:
    """Have torch's launcher kill the ranks some seconds after a second signal.

    It closes the processes at each signal, and would wait as long after the second one as after the first.
    """
    from torch.distributed.elastic.multiprocessing.api import SubprocessContext

    close = SubprocessContext.close
    closed: WeakSet[SubprocessContext] = WeakSet()

    def close_or_kill(self: SubprocessContext, death_sig: signal.Signals | None = None, timeout: int = 30) -> None:
        if self in closed and any(handler.proc.poll() is None for handler in self.subprocess_handlers.values()):
            for name in _FORWARDED:  # a third one would end this process before the ranks
                signal.signal(getattr(signal, name), signal.SIG_IGN)
            timeout = _SECOND_GRACE_SECONDS
        closed.add(self)
        close(self, death_sig, timeout)

    SubprocessContext.close = close_or_kill  # type: ignore[assignment, method-assign]
