"""Requests to stop, as signals: a program asks for them, saves, and ends."""

from __future__ import annotations

import enum
import faulthandler
import signal

from trial_runtime.core._distributed import DistributedContext
from trial_runtime.core._stop_signals import StopSignals


class PreemptMode(enum.Enum):
    """The ranks that call ``should_preempt()``: all in step, the chief only, or each rank for itself."""

    WorkersAskChief = "WORKERS_ASK_CHIEF"
    ChiefOnly = "CHIEF_ONLY"
    WorkersAskMaster = "WORKERS_ASK_MASTER"


class PreemptContext:
    """Requests to stop: SIGTERM, SIGINT, SIGUSR1, SIGUSR2. The first one is reported, a second one acts as without
    this.

    Args:
        distributed: the ranks.
        preempt_mode: who calls :meth:`should_preempt`.
    """

    acknowledged = 0
    """Number of the signal that a program of this process was asked to stop by; 0 without one."""

    def __init__(
        self, distributed: DistributedContext, preempt_mode: PreemptMode = PreemptMode.WorkersAskChief
    ) -> None:
        self._distributed = distributed
        self._preempt_mode = PreemptMode(preempt_mode)
        self._started = False
        self._agreed = 0
        self._signals = StopSignals(_dump_stacks)

    def start(self) -> PreemptContext:
        """Begin to listen for signals.

        Raises:
            RuntimeError: it was started before.
        """
        if self._started:
            raise RuntimeError("you cannot call PreemptContext.start() multiple times")
        self._started = True
        self._signals.install()
        return self

    def close(self) -> None:
        """Restore the handlers of signals."""
        self._signals.restore()

    def __enter__(self) -> PreemptContext:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def should_preempt(self, auto_ack: bool = True) -> bool:
        """Return whether the program should save and end. In WorkersAskChief mode collective: all ranks get the same.

        Args:
            auto_ack: acknowledge a request, as :meth:`acknowledge_preemption_signal` does.

        Raises:
            RuntimeError: before :meth:`start`, or on a worker in ChiefOnly mode.
        """
        if not self._started:
            raise RuntimeError("you cannot call PreemptContext.should_preempt() before PreemptContext.start()")
        if self._preempt_mode is PreemptMode.ChiefOnly and self._distributed.rank != 0:
            raise RuntimeError(
                "PreemptContext was configured with preempt_mode=ChiefOnly but .should_preempt() was called from "
                f"non-chief worker of rank={self._distributed.rank}"
            )
        # Ranks get a signal at different moments, or only some get it: what they exchanged counts.
        in_step = self._preempt_mode is PreemptMode.WorkersAskChief
        received = self._signals.received
        self._agreed = max(self._distributed.allgather(received)) if in_step else received
        if self._agreed and auto_ack:
            self.acknowledge_preemption_signal()
        return bool(self._agreed)

    def acknowledge_preemption_signal(self) -> None:
        """Record that the program ends because of the request, and that the run is to be resumed."""
        PreemptContext.acknowledged = self._agreed


def _dump_stacks(number: int) -> None:
    if number == signal.SIGUSR1:  # as on a cluster, where that was its only use
        faulthandler.dump_traceback(all_threads=True)
