"""Jobs: one training run each, on one process a rank; the ranks are started, watched and ended together."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trial_runtime._ranks import Process, RankProcesses, rank_variables, without_ranks

from ds_verify.failure import Failure
from ds_verify.launchers import Launcher

VARIABLES = "DS_VERIFY_VARIABLES"
"""Environment variable with those of the experiment config (JSON); set where a rank begins to train."""

_POLL_SECONDS = 0.1
_TAIL = 4000
_UNUSED_PORT = 29500  # the ranks meet in a file
HANG = 60.0
"""Seconds in which some rank of a job has to move, :attr:`Job.hang`. A collective itself would wait five minutes."""


@dataclasses.dataclass(frozen=True)
class Job:
    """One training run. What the ranks read of it is a JSON file, see :mod:`ds_verify.worker`.

    Attributes:
        name: of its files. context: the working directory. kind, target, args: the entrypoint; the kind of a script
            that holds no trial is ``"plain"``.
        info: the run, as ``get_cluster_info()`` returns it. environment: variables of the experiment config.
        ranks: number of processes. threads: of each, where ``OMP_NUM_THREADS`` is not set.
        steps: micro-batches, rounded up to whole optimizer steps. window: those between two reports, likewise.
        seed: of all random generators.
        oracle: train on the real ``determined``. is_deepspeed_trial: its DeepSpeedTrial, on a CPU.
        resumed: save and resume in the middle. validates: validate four times, not only at the end.
        nudge: move each initial weight by one ulp.
        host_batches: let batches raise where a GPU would.
        replaces_cuda: let tensors stay on the CPU that are sent to a GPU.
        hang: seconds after which ranks that only wait for each other are stopped.
        worker: the module that a rank runs.
    """

    name: str
    context: str
    kind: str
    target: str
    args: Sequence[str]
    info: Mapping[str, Any]
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    ranks: int = 1
    threads: int = 1
    steps: int = 50
    window: int = 1
    seed: int = 7
    device: str = "cpu"
    oracle: bool = False
    is_deepspeed_trial: bool = False
    resumed: bool = True
    validates: bool = True
    nudge: bool = False
    host_batches: bool = False
    replaces_cuda: bool = False
    hang: float = HANG
    worker: str = "ds_verify.worker"


class JobRunner:
    """Trains jobs and leaves their records in a folder.

    Args:
        folder: for records, logs and rendezvous files.
        launcher: starts the ranks.
        idle: seconds without a micro-batch after which a job counts as stuck.
    """

    def __init__(self, folder: Path, launcher: Launcher, idle: float = 600.0) -> None:
        self.records = folder / "records"
        self.records.mkdir(parents=True, exist_ok=True)
        self._folder, self._launcher, self._idle = folder, launcher, idle

    def run(
        self,
        jobs: Sequence[Job],
        at_once: int = 1,
        progress: Callable[[str, int], None] = lambda *_: None,
        required: str | None = None,
    ) -> dict[str, Failure]:
        """Train jobs, in their order.

        Args:
            jobs: each of another name.
            at_once: how many train at the same time.
            progress: called at a job's start, from time to time, and at its end, with its name and the number of
                micro-batches it has trained.
            required: the name of the job without which the others are worth nothing.

        Returns:
            The failures by name. Jobs that did not end because the required one failed have none.

        Raises:
            BaseException: what interrupted the wait; all ranks are killed first, with their loader workers.
        """
        waiting, running = list(jobs), list[_Running]()
        failures: dict[str, Failure] = {}
        try:
            while waiting or running:
                while waiting and len(running) < at_once:
                    job = waiting.pop(0)
                    progress(job.name, 0)
                    running.append(_Running(job, self._launcher, self._folder, self.records))
                self._launcher.wait(_POLL_SECONDS)
                for each in [each for each in running if each.is_over(self._idle, progress)]:
                    running.remove(each)
                    failure = each.end()
                    if failure is None:
                        progress(each.job.name, each.job.steps)
                    else:
                        failures[each.job.name] = failure
                        if each.job.name == required:
                            return failures
        finally:
            for each in running:
                each.end()
        return failures

    def files(self, job: Job) -> list[Path]:
        """Return the paths of a job's record, one for each rank; all are there when it has trained."""
        return [self.records / f"{job.name}.rank{rank}.values" for rank in range(job.ranks)]


class _Running:
    """The ranks of a job that has been started."""

    def __init__(self, job: Job, launcher: Launcher, folder: Path, records: Path) -> None:
        self.job = job
        self._records = records
        self._seen, self._since, self._is_stuck = -1, time.monotonic(), False
        directory = folder / "jobs" / job.name
        directory.mkdir(parents=True)
        order = directory / "job.json"
        order.write_text(
            json.dumps({**dataclasses.asdict(job), "environment": {}, "records": str(records)}), encoding="utf-8"
        )
        if job.kind == "plain":
            (folder / "tmp").mkdir(exist_ok=True)
        self._logs = [directory / f"rank{rank}.log" for rank in range(job.ranks)]

        def start(rank: int) -> Process:
            environment, command = _environment(job, rank, directory), ["-m", job.worker, str(order)]
            if job.kind == "plain":  # what a script leaves there goes with the folder
                environment["TMPDIR"] = str(folder / "tmp")
            return launcher.start(command, environment=environment, directory=directory, log=self._logs[rank])

        self._ranks = RankProcesses(start, job.ranks)

    def is_over(self, idle: float, progress: Callable[[str, int], None]) -> bool:
        """Return whether all ranks have ended, one of them failed, or none has made progress for so many seconds."""
        if self._ranks.are_over():
            return True
        if (step := self._step()) != self._seen:
            self._seen, self._since = step, time.monotonic()
            progress(self.job.name, step)
        self._is_stuck = time.monotonic() - self._since > idle
        return self._is_stuck

    def end(self) -> Failure | None:
        """Kill the ranks that still run; return why there is no record."""
        signals = "".join(f"\nrank {rank} was ended by {name}" for rank, name in self._signals())
        self._ranks.kill()
        if all((self._records / f"{self.job.name}.rank{rank}.json").is_file() for rank in range(self.job.ranks)):
            return None
        errors = [
            Failure(**json.loads(path.read_text()))
            for path in sorted(self._records.glob(f"{self.job.name}.rank*.error"))
        ]
        if errors:
            # The others only saw the connection to the first one break.
            return min(errors, key=lambda failure: "Connection closed by peer" in failure.text)
        output = "\n".join(log.read_text(errors="replace")[-_TAIL:] for log in self._logs)
        seconds = f"\nmade no progress for {time.monotonic() - self._since:.0f} s" if self._is_stuck else ""
        return Failure(self._step(), output + signals + seconds)

    def _signals(self) -> Iterator[tuple[int, str]]:
        """Yield the ranks that a signal has ended, with its name."""
        for rank, code in enumerate(self._ranks.codes()):
            if code is not None and code < 0:
                is_kill = -code == signal.SIGKILL
                yield rank, signal.Signals(-code).name + ", as where memory runs out" * is_kill

    def _step(self) -> int:
        path = self._records / f"{self.job.name}.rank0.progress"
        text = path.read_text() if path.is_file() else ""
        return int(text) if text else max(self._seen, 0)  # none yet, or one that is being written


def _environment(job: Job, rank: int, directory: Path) -> dict[str, str]:
    environment = {
        **without_ranks(os.environ),
        "PYTHONDONTWRITEBYTECODE": "1",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "XDG_DATA_HOME": str(directory),  # where determined puts checkpoints off-cluster
    }
    environment[VARIABLES] = json.dumps(dict(job.environment))  # not in a file: they may be secrets
    environment.setdefault("OMP_NUM_THREADS", str(job.threads))
    environment.setdefault("PYTHONHASHSEED", "0")  # sets of strings have one order in all runs
    if job.device == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    if job.ranks > 1 or job.is_deepspeed_trial or job.kind == "plain":
        environment |= {**rank_variables(rank, job.ranks, _UNUSED_PORT), "USE_TORCH_DISTRIBUTED": "true"}
    return environment
