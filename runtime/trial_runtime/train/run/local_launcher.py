"""Start the ranks of one machine, watch them, forward signals to them, start them again after a crash."""

from __future__ import annotations

import datetime
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType

from trial_runtime._ranks import PythonProcess, RankProcesses, rank_variables
from trial_runtime.train.config.errors import ConfigError
from trial_runtime.train.run.supervision import GRACE_SECONDS

USAGE_EXIT = 2
_SCHEDULERS = (signal.SIGUSR1, signal.SIGUSR2)  # what is sent before a time limit; a script may use them otherwise
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, *_SCHEDULERS)
_SECOND_GRACE_SECONDS = 5  # a rank inside a long call of C++ reacts to no signal but SIGKILL
_FAILURE_GRACE_SECONDS = 30  # for the other ranks, once one has failed
_POLL_SECONDS = 0.05
_RELEASE_SECONDS = 0.5  # a killed rank ends once its memory is free; others may notice the lost connection before that
_STORE_TIMEOUT = datetime.timedelta(minutes=10)


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
        code = _run_once(arguments, slots, {**os.environ, **environment}, report)
        if code in (0, USAGE_EXIT) or attempt == max_restarts:
            return code
        report(f"started again from the latest checkpoint (restart {attempt + 1} of max_restarts {max_restarts})")
    raise AssertionError("unreachable")


def _run_once(arguments: Sequence[str], slots: int, environment: dict[str, str], report: Callable[[str], None]) -> int:
    store = None
    if slots > 1:
        _check_gpus(slots)
        from trial_runtime.core._loopback_store import serve_on_loopback

        store = serve_on_loopback(0, None, _STORE_TIMEOUT)  # ends with this start
        environment = {**_variables_of_several(slots), **environment, **_store_variables()}
    with _SignalForwarding(slots) as signals:

        def start(rank: int) -> PythonProcess:
            own = {} if store is None else rank_variables(rank, slots, store.port)
            process = PythonProcess(arguments, {**environment, **own})
            signals.forward_to(process)
            return process

        failed = _wait(RankProcesses(start, slots), signals)
    for number in signals.received:
        if number not in _SCHEDULERS or not {128 + number, -number}.isdisjoint(failed.values()):
            raise Stopped(number)
    return _exit_code(failed, slots, report) if failed else 0


def _check_gpus(slots: int) -> None:
    import torch

    visible = torch.cuda.device_count()
    if 0 < visible < slots:
        raise ConfigError(
            f"resources.slots_per_trial: {slots} slots, but this machine shows {visible} GPUs: use --slots {visible}, "
            f"or start ds-train on several machines with torchrun (CUDA_VISIBLE_DEVICES='' trains on the CPU)"
        )


def _variables_of_several(slots: int) -> dict[str, str]:
    """Return variables that the user may set otherwise."""
    variables = {
        "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // slots)),
        "PYTHONHASHSEED": "0",  # a vocabulary numbered in the order of a set is the same on each rank
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }
    if sys.platform == "linux":
        variables["GLOO_SOCKET_IFNAME"] = "lo"  # else gloo listens at the machine's own address
    return variables


def _store_variables() -> dict[str, str]:
    """Return torchrun's variables that have torch.distributed meet at the launcher's store."""
    return {
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RUN_ID": f"ds-train-{os.getpid()}",
        "TORCHELASTIC_RESTART_COUNT": "0",  # run_ranks starts them again, with a new store
        "TORCHELASTIC_MAX_RESTARTS": "0",
    }


class _SignalForwarding:
    """Signals that this process receives and forwards to the ranks, which end themselves.

    Attributes:
        received: the signals so far.
        deadline: of the ranks' end, as :func:`time.monotonic` counts.
    """

    def __init__(self, slots: int) -> None:
        self.received: list[int] = []
        self.deadline = math.inf
        self._slots = slots
        self._processes: list[PythonProcess] = []

    def __enter__(self) -> _SignalForwarding:
        self._previous = {number: signal.signal(number, self._forward) for number in _FORWARDED}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @property
    def stops(self) -> int:
        """Number of received signals that end a run, whatever the ranks do with them."""
        return len([number for number in self.received if number not in _SCHEDULERS])

    def forward_to(self, process: PythonProcess) -> None:
        """Forward signals to a rank too, also those that came before."""
        self._processes.append(process)
        for number in self.received:
            process.send_signal(number)

    def _forward(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self.received.append(number)
        if self.stops > 1:
            self.deadline = min(self.deadline, time.monotonic() + _SECOND_GRACE_SECONDS)
        elif self.stops and self._slots > 1:  # one that is stuck would have the others wait forever
            self.deadline = time.monotonic() + GRACE_SECONDS
        for process in self._processes:
            process.send_signal(number)


def _wait(ranks: RankProcesses, signals: _SignalForwarding) -> dict[int, int]:
    """Wait for the end of all ranks, and end the others once one has failed; return the exit codes of those."""
    failed: dict[int, int] = {}
    deadline = math.inf
    try:
        while None in (codes := ranks.codes()) and time.monotonic() < min(deadline, signals.deadline):
            if not failed and not signals.stops and (failed := _failed(codes, signals.received)):
                failed |= _killed(ranks, signals.received)
                ranks.terminate()
                deadline = time.monotonic() + _FAILURE_GRACE_SECONDS
            time.sleep(_POLL_SECONDS)
    finally:
        if None in ranks.codes():
            ranks.kill()
    return failed or _failed(ranks.codes(), ())


def _killed(ranks: RankProcesses, received: Sequence[int]) -> dict[int, int]:
    """Wait a moment for a rank that was killed, the cause of what others failed of; return its exit code, if any."""
    deadline = time.monotonic() + _RELEASE_SECONDS
    while True:
        codes = ranks.codes()
        killed = {rank: code for rank, code in _failed(codes, received).items() if code < 0}
        if killed or None not in codes or time.monotonic() > deadline:
            return killed
        time.sleep(_POLL_SECONDS)


def _failed(codes: Sequence[int | None], received: Sequence[int]) -> dict[int, int]:
    """Return the exit codes of the ranks that have failed; those that a signal has ended have not."""
    return {rank: code for rank, code in enumerate(codes) if code and not any(code in (128 + n, -n) for n in received)}


def _exit_code(failed: Mapping[int, int], slots: int, report: Callable[[str], None]) -> int:
    """Report which rank failed, and return its exit code."""
    # A rank that was killed is the cause, also where others noticed before the launcher looked.
    rank, code = min(failed.items(), key=lambda item: item[1] >= 0 or item[1] == -signal.SIGTERM)
    if code < 0:
        report(f"rank {rank} was ended by {signal.Signals(-code).name}")
        return 128 - code
    if slots > 1:
        report(f"rank {rank} ended with exit code {code}; the other ranks were stopped")
    return code
