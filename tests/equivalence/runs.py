"""Trains scenarios and jobs through ds_verify, each once a session, whichever worker of pytest-xdist needs it first."""

from __future__ import annotations

import fcntl
import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path

from ds_verify.failure import Failure
from ds_verify.job import Job, JobRunner
from ds_verify.launchers import launcher_for
from ds_verify.record import Record
from ds_verify.runs import TrainingRun, collect, make_job
from ds_verify.select_trial import select_trial

from equivalence.scenario import STEPS, WINDOW, Scenario

OVERWRITE = "hyperparameters.overwrite_deepspeed_args"


class Runs:
    """Records of runs.

    Args:
        shared: the folder of records, one for all workers.
        own: a folder of this worker.
    """

    def __init__(self, shared: Path, own: Path) -> None:
        self.own = own
        self._shared = shared
        self._runner = JobRunner(shared, launcher_for("cpu"), idle=120)
        self._kept: dict[str, TrainingRun] = {}

    def get(self, scenario: Scenario) -> Record:
        """Return the record of a scenario.

        Raises:
            RuntimeError: the run failed, with its error.
        """
        training = self.training(self._job(scenario))
        if training.failure is not None:
            raise RuntimeError(f"{scenario} did not train:\n{training.failure.text}")
        (accumulation,) = (value for key, value in training.record.values.items() if key.kind == "setup")
        assert int(accumulation) == scenario.accumulation, f"{scenario} accumulates over {accumulation}"
        if scenario.side == "candidate":
            assert set(training.figures["zero_stages"]) == {scenario.zero}, f"{scenario} trains otherwise"
        return training.record

    def training(self, job: Job) -> TrainingRun:
        """Return what a job gives; two jobs of one name are the same job."""
        if job.name not in self._kept:
            failed = self._shared / f"{job.name}.failure"
            with (self._shared / f"{job.name}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not failed.exists() and not all(path.exists() for path in self._runner.files(job)):
                    for failure in self._runner.run([job]).values():
                        failed.write_text(json.dumps(asdict(failure)))
            failures = [Failure(**json.loads(path.read_text())) for path in [failed] if path.exists()]
            self._kept[job.name] = collect(self._runner, job, *failures)
        return self._kept[job.name]

    def _job(self, scenario: Scenario) -> Job:
        folder = self._sources(scenario)
        accumulates = scenario.accumulation > 1 and (folder / "accumulate.yaml").exists()
        selection = select_trial(folder, Path("accumulate.yaml" if accumulates else "const.yaml"))
        changes: dict[str, object] = {}
        if scenario.side == "candidate":
            changes = {
                f"{OVERWRITE}.gradient_accumulation_steps": scenario.accumulation,
                f"{OVERWRITE}.zero_optimization.stage": scenario.zero,
            }
        elif scenario.accumulation > 1:
            changes = {"optimizations.aggregation_frequency": scenario.accumulation}
        job = make_job(str(scenario), selection, folder, self.own / "runs" / str(scenario), scenario.ranks, changes)
        return replace(
            job,
            steps=STEPS,
            window=WINDOW,
            oracle=scenario.is_real,
            is_deepspeed_trial=scenario.side == "target",
            resumed=scenario.resumed,
            validates=scenario.validates,
        )

    def _sources(self, scenario: Scenario) -> Path:
        """Return a copy of the sources. A script that trains the original accumulates as its own call asks for."""
        copy = self.own / "sources" / scenario.fixture / f"{scenario.folder.name}-{scenario.accumulation}"
        if not copy.exists():
            shutil.copytree(scenario.folder, copy, ignore=shutil.ignore_patterns("__pycache__"))
            script, call = copy / "train.py", " pytorch.init("
            if script.exists() and scenario.side != "candidate" and scenario.accumulation > 1:
                text = script.read_text()
                assert text.count(call) == 1
                script.write_text(text.replace(call, f"{call}aggregation_frequency={scenario.accumulation}, "))
        return copy
