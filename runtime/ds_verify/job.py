"""Starts the ranks of one job, watches them, and ends them together."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

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
    """Runs that follow each other in the same processes.

    directory: of the job's own files. records: where the runs leave theirs. idle: seconds without a batch after which
    the job counts as stuck.
    """

    runs: list[RunOrder]
    ranks: int
    steps: int
    seed: int
    oracle: bool
    device: str
    directory: Path
    records: Path
    idle: float = 600.0


def run_job(job: Job, progress: Callable[[str, int], None]) -> dict[str, Failure]:
    """Train the runs of `job`; the failures by the run's name.

    Args:
        progress: called with a run's name and how many micro-batches it has trained, now and then.

    KeyboardInterrupt ends all ranks, their loader workers too, before it goes on.
    """
    job.directory.mkdir(parents=True)
    job.records.mkdir(parents=True, exist_ok=True)
    description = {
        "runs": [asdict(run) for run in job.runs],
        "steps": job.steps,
        "seed": job.seed,
        "oracle": job.oracle,
        "records": str(job.records),
        "store": str(job.directory / "store"),
    }
    (job.directory / "job.json").write_text(json.dumps(description), encoding="utf-8")
    logs = [job.directory / f"rank{rank}.log" for rank in range(job.ranks)]
    command = [sys.executable, "-m", "ds_verify.worker", str(job.directory / "job.json")]
    processes = []
    for rank, log in enumerate(logs):
        with log.open("wb") as stream:
            process = subprocess.Popen(
                command,
                env=_environment(job, rank),
                stdout=stream,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=job.directory,
                start_new_session=True,  # so that its loader workers end with it
            )
        processes.append(process)
    try:
        stuck = _wait(job, processes, progress)
    finally:
        for process in processes:
            _end(process)
    return _failures(job, logs, stuck)


def _wait(job: Job, processes: list[subprocess.Popen[bytes]], progress: Callable[[str, int], None]) -> bool:
    """Until all ranks have ended, or one of them badly; whether they made no progress for too long."""
    seen, since = ("", -1), time.monotonic()
    # The ranks stand or fall together: one that died leaves the others waiting.
    while any(process.poll() is None for process in processes) and not any(process.poll() for process in processes):
        now = _progress(job)
        if now != seen:
            seen, since = now, time.monotonic()
            progress(*now)
        if time.monotonic() - since > job.idle:
            return True
        time.sleep(_POLL_SECONDS)
    return False


def _progress(job: Job) -> tuple[str, int]:
    for run in reversed(job.runs):
        path = job.records / f"{run.name}.rank0.progress"
        if path.is_file():
            return run.name, int(path.read_text() or 0)
    return job.runs[0].name, 0


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


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
    environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // job.ranks)))
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
