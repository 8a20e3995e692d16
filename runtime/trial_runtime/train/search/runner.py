"""Trials of a search on this machine: open assignments are claimed, run by ``ds-train``, and their end is recorded."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

from trial_runtime.train.search.assignment import Assignment, Outcome
from trial_runtime.train.search.directory import SearchDirectory


@dataclass
class _Running:
    assignment: Assignment
    process: subprocess.Popen[bytes]
    claim: IO[str]
    place: int
    is_stopping: bool = False


class Runner:
    """Runs trials, as many at once as the machine has places.

    Args:
        directory: the search.
        command: of ``ds-train``, up to the config and its changes; the trial's own options are added.
        places: how many trials at once.
        devices: for each place the GPUs of its trial, as ``CUDA_VISIBLE_DEVICES`` takes them; empty on a CPU.
        environment: variables for the trials.
    """

    def __init__(
        self,
        directory: SearchDirectory,
        command: Sequence[str],
        places: int,
        devices: Sequence[str] = (),
        environment: dict[str, str] | None = None,
    ) -> None:
        self._directory = directory
        self._command = list(command)
        self._free = list(range(places))
        self._devices = devices
        self._environment = environment or {}
        self._running: dict[int, _Running] = {}
        self._is_stopping = False

    @property
    def trials(self) -> list[int]:
        """Return the trials that run here, by number."""
        return sorted(self._running)

    def record_ends(self) -> None:
        """Record the trials that ended.

        What they lead to is to be decided before others start: else a search that is killed and started again would
        start others first than the one that nothing disturbed.
        """
        for running in list(self._running.values()):
            if running.process.poll() is not None:
                self._end(running)

    def step(self, assignments: Sequence[Assignment]) -> None:
        """Stop the trials that are to stop, and start others."""
        stopped = {assignment.trial for assignment in assignments if assignment.is_stopped}
        for trial, running in self._running.items():
            if trial in stopped and not running.is_stopping:
                running.is_stopping = True
                running.process.send_signal(signal.SIGTERM)
        for assignment in assignments:
            if not self._free:
                return
            if assignment.trial not in self._running and self._directory.is_open(assignment):
                self._start(assignment)

    def stop(self, number: int) -> None:
        """Forward a signal to all trials; those that it ends stay open, and resume from their checkpoints."""
        self._is_stopping = True
        for running in self._running.values():
            running.process.send_signal(number)

    def wait(self) -> None:
        """Wait until all trials have ended."""
        for running in list(self._running.values()):
            running.process.wait()
            self._end(running)

    def _start(self, assignment: Assignment) -> None:
        trial = assignment.trial
        claim = self._directory.claim(trial)
        if claim is None:  # another machine runs it
            return
        # Ended a moment ago; or ranks of a killed ds-train are still leaving.
        if not self._directory.is_open(assignment) or self._directory.is_training(trial):
            claim.close()
            return
        place = self._free.pop(0)
        environment = {**os.environ, **self._environment}
        if self._devices:
            environment["CUDA_VISIBLE_DEVICES"] = self._devices[place]
        options = ["--run-dir", self._directory.run_directory(trial), "--assignment"]
        with self._directory.console_path(trial).open("ab") as console:
            process = subprocess.Popen(
                [*self._command, *map(str, options), str(self._directory.assignment_path(trial))],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                env=environment,
                pass_fds=[claim.fileno()],  # the claim is held as long as the trial's own processes live
                start_new_session=True,
            )
        self._running[trial] = _Running(assignment, process, claim, place)

    def _end(self, running: _Running) -> None:
        code = running.process.returncode
        # Whatever a trial that had to leave ended with, it is to resume.
        if code == 0 or running.is_stopping or not self._is_stopping:
            self._directory.finish(running.assignment.trial, Outcome(running.assignment.order, code))
        running.claim.close()
        del self._running[running.assignment.trial]
        self._free.append(running.place)
        self._free.sort()


def ds_train_command(config: str, context: str, changes: Sequence[str]) -> list[str]:
    """Return the command of a trial's ``ds-train``, without the options that name the trial."""
    settings = [word for change in changes for word in ("--config", change)]
    return [sys.executable, "-m", "trial_runtime.train", config, context, *settings]
