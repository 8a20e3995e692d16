"""Jobs: the ranks of each are started, watched, and ended together."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ds_verify.fork_server import Launcher, Process

_POLL_SECONDS = 0.1
_TAIL = 4000
_REASON = 400
_ERROR = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Exit|Interrupt|HP|Raised|Warning)(:|$)")


@dataclass(frozen=True)
class RunOrder:
    """One run, for the rank module: see there.

    name: of its files. context: the working directory. kind, target, args: the entrypoint.
    info: the run, as get_cluster_info() tells it. environment: variables of its own.
    resumed: saved and resumed in the middle. nudge: initial weights moved by one ulp.
    host_batches: batches raise where a GPU would.
    """

    name: str
    context: str
    kind: str
    target: str
    args: list[str]
    info: dict[str, Any]
    environment: dict[str, str] = field(default_factory=dict)
    resumed: bool = True
    nudge: bool = False
    host_batches: bool = False


@dataclass(frozen=True)
class Failure:
    """Why a run has no record: after how many micro-batches, and the traceback or the end of its output."""

    step: int
    text: str

    @property
    def reason(self) -> str:
        """The error itself, on one line; without a traceback the last line that says something."""
        lines = [line.strip() for line in self.text.strip().splitlines() if line.strip()] or ["ended without a word"]
        starts = [index for index, line in enumerate(self.text.strip().splitlines()) if _ERROR.match(line)]
        if not starts:
            return lines[-1]
        words = " ".join(line.strip() for line in self.text.strip().splitlines()[starts[-1] :])
        return words if len(words) <= _REASON else f"{words[:_REASON]}..."


@dataclass(frozen=True)
class Job:
    """Runs that follow each other in the same processes, one process a rank.

    Attributes:
        directory: for the job's own files. records: where the runs leave theirs.
        idle: seconds without a batch after which the job counts as stuck.
        launcher: starts the ranks.
        threads: of each rank, where OMP_NUM_THREADS is not set.
        is_required: whether nothing else is worth training when one of its runs fails.
    """

    runs: list[RunOrder]
    ranks: int
    steps: int
    seed: int
    oracle: bool
    device: str
    launcher: Launcher
    directory: Path
    records: Path
    idle: float = 600.0
    threads: int = 1
    is_required: bool = False


def run_jobs(jobs: Sequence[Job], at_once: int, progress: Callable[[str, int], None]) -> dict[str, Failure]:
    """Train the runs of all jobs.

    Args:
        jobs: in the order in which they start.
        at_once: how many jobs train at the same time.
        progress: called from time to time with a run's name and how many micro-batches it has trained.

    Returns:
        The failures, by the run's name. Jobs that were not started after a required one failed have none.

    Raises:
        BaseException: what the wait was interrupted with; all ranks are killed first, with their loader workers.
    """
    waiting, running = list(jobs), list[_Running]()
    failures: dict[str, Failure] = {}
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                running.append(_Running(waiting.pop(0)))
            running[-1].job.launcher.wait(_POLL_SECONDS)
            for each in [each for each in running if each.is_over(progress)]:
                running.remove(each)
                failed = each.end()
                failures |= failed
                if failed and each.job.is_required:
                    return failures
    finally:
        for each in running:
            each.end()
    return failures


class _Running:
    """The ranks of a job that has been started."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.logs = [job.directory / f"rank{rank}.log" for rank in range(job.ranks)]
        self._seen, self._since, self._is_stuck = ("", -1), time.monotonic(), False
        self._processes: list[Process] = []
        description = {
            "runs": [asdict(run) for run in job.runs],
            "steps": job.steps,
            "seed": job.seed,
            "oracle": job.oracle,
            "records": str(job.records),
            "store": str(job.directory / "store"),
        }
        job.directory.mkdir(parents=True)
        job.records.mkdir(parents=True, exist_ok=True)
        order = job.directory / "job.json"
        order.write_text(json.dumps(description), encoding="utf-8")
        try:
            for rank, log in enumerate(self.logs):
                environment = _environment(job, rank)
                self._processes.append(
                    job.launcher.start(
                        "ds_verify.worker", [str(order)], environment=environment, directory=job.directory, log=log
                    )
                )
        except BaseException:
            self._kill()
            raise

    def is_over(self, progress: Callable[[str, int], None]) -> bool:
        """Return whether all ranks have ended, one of them failed, or none has made progress for too long."""
        # The ranks stand or fall together: one that died leaves the others waiting.
        codes = [process.poll() for process in self._processes]
        if all(code is not None for code in codes) or any(codes):
            return True
        if (now := _progress(self.job)) != self._seen:
            self._seen, self._since = now, time.monotonic()
            progress(*now)
        self._is_stuck = time.monotonic() - self._since > self.job.idle
        return self._is_stuck

    def end(self) -> dict[str, Failure]:
        """Kill the ranks that still run; return the failures by the run's name."""
        self._kill()
        return _failures(self.job, self.logs, self._is_stuck)

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()


def _progress(job: Job) -> tuple[str, int]:
    for run in reversed(job.runs):
        path = job.records / f"{run.name}.rank0.progress"
        if path.is_file():
            return run.name, int(path.read_text() or 0)
    return job.runs[0].name, 0


def _failures(job: Job, logs: list[Path], stuck: bool) -> dict[str, Failure]:
    failures: dict[str, Failure] = {}
    output = "\n".join(log.read_text(errors="replace")[-_TAIL:] for log in logs)
    for run in job.runs:
        if all((job.records / f"{run.name}.rank{rank}.json").is_file() for rank in range(job.ranks)):
            continue
        errors = [
            Failure(**json.loads(path.read_text())) for path in sorted(job.records.glob(f"{run.name}.rank*.error"))
        ]
        if errors:
            # The others only saw the connection to the first one break.
            failures[run.name] = min(errors, key=lambda failure: "Connection closed by peer" in failure.text)
        elif stuck:
            failures[run.name] = Failure(_step(job, run), f"{output}\nmade no progress for {job.idle:.0f} s")
        else:
            failures[run.name] = Failure(_step(job, run), output)
        break  # those after it were not started
    return failures


def _step(job: Job, run: RunOrder) -> int:
    path = job.records / f"{run.name}.rank0.progress"
    return int(path.read_text() or 0) if path.is_file() else 0


def _environment(job: Job, rank: int) -> dict[str, str]:
    environment = {
        **os.environ,
        "PYTHONDONTWRITEBYTECODE": "1",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "XDG_DATA_HOME": str(job.directory),  # where determined puts checkpoints off-cluster
    }
    environment.setdefault("OMP_NUM_THREADS", str(job.threads))
    if job.device == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        environment.pop(name, None)
    if job.ranks > 1:
        environment |= {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "GROUP_RANK": "0", "ROLE_RANK": str(rank),
            "WORLD_SIZE": str(job.ranks), "LOCAL_WORLD_SIZE": str(job.ranks), "GROUP_WORLD_SIZE": "1",
            "USE_TORCH_DISTRIBUTED": "true", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500",
        }  # fmt: skip
    return environment
