"""Starts the driver's processes and collects their records."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from ds_verify.record import Record

from equivalence.scenario import Scenario

# A scenario takes about a second; this bounds one that hangs.
SECONDS_TO_START, SECONDS_PER_SCENARIO = 90, 30


class Runs:
    """Trains scenarios when they are first asked for, several in one process, and keeps their records."""

    def __init__(self, directory: Path, planned: Sequence[Scenario] = ()) -> None:
        self.directory, self.planned = directory, planned
        self.records = directory / "records"
        self.records.mkdir(parents=True)
        self._jobs = itertools.count()
        self._kept: dict[Scenario, Record] = {}

    def get(self, scenario: Scenario) -> Record:
        """The record of `scenario`. Planned ones that fit into the same processes are trained along with it.

        Raises RuntimeError with the error of the trial when the run failed.
        """
        if scenario not in self._kept:
            if not self._finished(scenario) and not self._error(scenario):
                self._train([s for s in dict.fromkeys([*self.planned, scenario]) if self._together(s, scenario)])
            if error := self._error(scenario):
                raise RuntimeError(f"{scenario} did not train:\n{error}")
            self._kept[scenario] = Record.load(self._files(scenario))
        return self._kept[scenario]

    @staticmethod
    def _together(one: Scenario, other: Scenario) -> bool:
        return one.ranks == other.ranks and one.real == other.real

    def _files(self, scenario: Scenario) -> list[Path]:
        return [self.records / f"{scenario}.rank{rank}.npz" for rank in range(scenario.ranks)]

    def _finished(self, scenario: Scenario) -> bool:
        return all(file.exists() for file in self._files(scenario))

    def _error(self, scenario: Scenario) -> str:
        files = sorted(self.records.glob(f"{scenario}.rank*.error"))
        return "\n".join(file.read_text() for file in files)

    def _train(self, scenarios: Sequence[Scenario]) -> None:
        """Trains all of them; after one that fails, the rest goes on in fresh processes."""
        while waiting := [s for s in scenarios if not self._finished(s) and not self._error(s)]:
            output = self._launch(waiting)
            stuck = next((s for s in waiting if not self._finished(s)), None)
            if stuck and not self._error(stuck):
                (self.records / f"{stuck}.rank0.error").write_text(output)

    def _launch(self, scenarios: Sequence[Scenario]) -> str:
        """One process for each rank, started as torchrun would; returns the end of their output when they failed."""
        job = self.directory / f"job{next(self._jobs)}"
        job.mkdir()
        folders = {}
        for scenario in scenarios:
            copy = self.directory / "sources" / scenario.fixture / scenario.folder.name
            if not copy.exists():
                shutil.copytree(scenario.folder, copy, ignore=shutil.ignore_patterns("__pycache__"))
            folders[str(scenario)] = str(copy)
        description = {
            "scenarios": [asdict(s) for s in scenarios],
            "folders": folders,
            "records": str(self.records),
            "store": str(job / "store"),
        }
        (job / "job.json").write_text(json.dumps(description))

        ranks = scenarios[0].ranks
        command = [sys.executable, "-m", "equivalence.driver", str(job / "job.json")]
        logs = [(job / f"rank{rank}.log") for rank in range(ranks)]
        processes = []
        for rank, log in enumerate(logs):
            environment = self._environment(rank, ranks)
            with log.open("wb") as stream:
                processes.append(subprocess.Popen(command, env=environment, stdout=stream, stderr=subprocess.STDOUT))
        limit = time.monotonic() + SECONDS_TO_START + SECONDS_PER_SCENARIO * len(scenarios)
        timed_out = False
        try:
            # The ranks stand or fall together: one that died leaves the others waiting.
            while any(p.poll() is None for p in processes) and not any(p.poll() for p in processes):
                if timed_out := time.monotonic() > limit:
                    break
                time.sleep(0.05)
        finally:
            failed = timed_out or any(p.poll() for p in processes)
            for process in processes:
                process.kill()
                process.wait()
        if not failed:
            return ""
        head = "timed out\n" if timed_out else ""
        return head + "\n".join(f"--- {log.name}\n{log.read_text(errors='replace')[-4000:]}" for log in logs)

    def _environment(self, rank: int, ranks: int) -> dict[str, str]:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
            "XDG_DATA_HOME": str(self.directory / "checkpoints"),  # where determined puts local checkpoints
            "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1",  # determined restores with pickled objects
        }
        if ranks > 1:
            environment |= {
                "RANK": str(rank), "LOCAL_RANK": str(rank), "GROUP_RANK": "0", "ROLE_RANK": str(rank),
                "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "GROUP_WORLD_SIZE": "1",
                "USE_TORCH_DISTRIBUTED": "true",
            }  # fmt: skip
        return environment
