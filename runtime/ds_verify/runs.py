"""All runs of one verification and their results."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trial_runtime.train.config.errors import ConfigError

from ds_verify.failure import Failure
from ds_verify.job import HANG, Job, JobRunner
from ds_verify.launchers import Launcher
from ds_verify.record import Record
from ds_verify.sample_metrics import SampleCounts, jumps, parted_from
from ds_verify.select_trial import TrialSelection, info_of, plan_of
from ds_verify.tolerance import FLOORS, Limits
from ds_verify.working_copies import Sides, mentions_cuda


@dataclass(frozen=True)
class Settings:
    """Settings of the training and the comparison.

    Attributes:
        steps: micro-batches. ranks: world sizes, one after another. device: ``"cpu"`` or ``"cuda"``.
        zero_sweep: further runs of the converted trial, each at one stage.
        oracle: train the original on the real ``determined``; no side is saved and resumed then.
        resumes: save and resume both sides in the middle.
        tolerance: in place of the measured one. idle: seconds without progress before a run counts as stuck.
        hang: seconds in which each of several ranks only waits, before they are reported as waiting for each other.
        deepspeed: settings of the converted trial's DeepSpeed config, by dotted name.
        seed: where the config names none.
    """

    steps: int = 50
    ranks: Sequence[int] = (1, 2)
    device: str = "cpu"
    zero_sweep: Sequence[int] = ()
    oracle: bool = False
    resumes: bool = True
    tolerance: float | None = None
    idle: float = 600.0
    hang: float = HANG
    deepspeed: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 7

    @property
    def is_resumed(self) -> bool:
        """Return whether both sides are saved and resumed in the middle."""
        return self.resumes and not self.oracle


@dataclass
class TrainingRun:
    """One run: its record and figures, or the reason why it has none.

    figures: ``seconds_a_batch``, ``samples`` of a batch on all ranks, ``peak_bytes`` of the rank that needs most,
    ``precision`` of the weights; ``trial_classes``: names of the trial's class and base classes; ``training_samples``
    and ``validation_samples``, see :class:`ds_verify.sample_metrics.SampleCounts`.
    """

    name: str
    record: Record = field(default_factory=Record)
    figures: dict[str, Any] = field(default_factory=dict)
    failure: Failure | None = None


@dataclass
class Round:
    """The runs with one number of ranks. `swept`: the converted trial at further stages."""

    ranks: int
    original: TrainingRun
    control: TrainingRun
    converted: TrainingRun
    settings: Settings
    swept: dict[int, TrainingRun] = field(default_factory=dict)

    def limits(self, converted: TrainingRun) -> Limits:
        """Return the gaps from which on `converted` differs: the control's spread, the coarser precision's floor."""
        kinds = [side.figures.get("precision", "float32") for side in (self.original, converted)]
        precision = next((kind for kind in ("bfloat16", "float16") if kind in kinds), "float32")
        floor = FLOORS[precision, self.settings.device]
        original, control = self.original.record, self.control.record
        limits = Limits.measured(original, control, floor, self.settings.tolerance)
        counts = SampleCounts.of(original, self.original.figures)
        limits.jumps = jumps([original, control, converted.record], counts)
        limits.parted_from = parted_from(original, converted.record, limits.jumps)
        return limits


@dataclass(frozen=True)
class Progress:
    """The progress of a verification.

    Attributes:
        run: the name of the run that trains. number: its place among all `runs`, from 1.
        trained: micro-batches of all runs so far. total: of all runs.
    """

    run: str
    number: int
    runs: int
    trained: int
    total: int


@dataclass
class VerificationRuns:
    """Trains both sides, round after round.

    Attributes:
        work: a folder for records, checkpoints and logs.
        progress: called from time to time.
        launcher: starts the ranks.
    """

    sides: Sides
    selection: TrialSelection
    settings: Settings
    work: Path
    progress: Callable[[Progress], None]
    launcher: Launcher
    _steps: dict[str, int] = field(default_factory=dict)

    @functools.cached_property
    def replaces_cuda(self) -> bool:
        """Return whether CUDA is replaced by a stand-in, on both sides: there is none, and the code names it."""
        folders = (self.sides.original, self.sides.converted)
        return self.settings.device == "cpu" and any(mentions_cuda(folder) for folder in folders)

    def rounds(self) -> Iterator[Round]:
        """Train with each number of ranks, no further than the first with which the original does not train.

        Raises:
            ConfigError: the config cannot be run with the first number of ranks, or the converted one not at all.
        """
        for count, ranks in enumerate(self.settings.ranks):
            try:
                original = self._original(ranks)
            except ConfigError as error:
                if not count:
                    raise
                refused = TrainingRun(f"original-{ranks}ranks", failure=Failure(0, str(error)))
                yield Round(ranks, refused, refused, refused, self.settings)
                return
            trained = self._round(original)
            yield trained
            if trained.original.failure is not None:
                return

    def _original(self, ranks: int, name: str = "original") -> Job:
        return replace(
            self._job(self.sides.original, f"{name}-{ranks}ranks", ranks),
            threads=max(1, cores() // (ranks * jobs_at_once(self.settings, ranks))),
            oracle=self.settings.oracle,
        )

    def _round(self, original: Job) -> Round:
        settings, ranks = self.settings, original.ranks
        control = replace(self._original(ranks, "control"), nudge=True)
        converted = self._converted(original, f"converted-{ranks}ranks")
        swept = {
            stage: self._converted(original, f"{converted.name}-zero{stage}", stage) for stage in settings.zero_sweep
        }
        runner = JobRunner(self.work, self.launcher, settings.idle)
        jobs = [original, converted, control, *swept.values()]
        failures = runner.run(jobs, jobs_at_once(settings, ranks), self._report, required=original.name)
        trained = {job.name: collect(runner, job, failures.get(job.name)) for job in jobs}
        for job in (converted, *swept.values()):
            _refuse_unconverted(trained[job.name])
        return Round(
            ranks,
            trained[original.name],
            trained[control.name],
            trained[converted.name],
            settings,
            {stage: trained[job.name] for stage, job in swept.items()},
        )

    def _converted(self, original: Job, name: str, stage: int | None = None) -> Job:
        changes = dict(self.settings.deepspeed)
        if stage is not None:
            changes["zero_optimization.stage"] = stage
        prefix = "hyperparameters.overwrite_deepspeed_args"
        changes = {f"{prefix}.{key}": value for key, value in changes.items()}
        return replace(
            self._job(self.sides.converted, name, original.ranks, changes),
            seed=original.seed,
            threads=original.threads,
            host_batches=self.settings.device == "cpu",
        )

    def _job(self, folder: Path, name: str, ranks: int, changes: Mapping[str, Any] | None = None) -> Job:
        job = make_job(name, self.selection, folder, self.work / "runs" / name, ranks, changes, self.settings.seed)
        settings = self.settings
        return replace(
            job,
            steps=settings.steps,
            device=settings.device,
            resumed=settings.is_resumed,
            replaces_cuda=self.replaces_cuda,
            hang=settings.hang,
        )

    def _report(self, run: str, step: int) -> None:
        settings = self.settings
        self._steps[run] = min(step, settings.steps)
        runs = len(settings.ranks) * (3 + len(settings.zero_sweep))
        trained, total = sum(self._steps.values()), runs * settings.steps
        side, _, rest = run.partition("-")
        count, _, stage = rest.partition("-zero")
        ranks = f"{int(count.removesuffix('ranks'))} rank{'s' * (count != '1ranks')}"
        title = f"{side}, {ranks}" + (f", ZeRO {stage}" if stage else "")
        self.progress(Progress(title, list(self._steps).index(run) + 1, runs, trained, total))


def make_job(
    name: str,
    selection: TrialSelection,
    folder: Path,
    directory: Path,
    ranks: int,
    changes: Mapping[str, Any] | None = None,
    seed: int = Settings.seed,
) -> Job:
    """Return the job that runs a selection.

    Args:
        name: of the job.
        selection: what to run.
        folder: the side's working copy.
        directory: where checkpoints and logs of the run go.
        ranks: number of processes.
        changes: fields of the experiment config to set, by dotted name.
        seed: where the config names none.

    Raises:
        ConfigError: the config cannot be run.
    """
    plan = plan_of(selection, folder, ranks, changes)
    seed = seed if plan.seed is None else plan.seed
    entry = plan.entrypoint
    return Job(
        name=name,
        context=str(folder),
        kind=entry.kind,
        target=entry.target,
        args=list(entry.args),
        info=json.loads(info_of(plan, directory, seed).to_json()),
        environment={**plan.environment, **plan.secret_environment},
        ranks=ranks,
        seed=seed,
    )


def collect(runner: JobRunner, job: Job, failure: Failure | None = None) -> TrainingRun:
    """Return what a job has left: one record and one file of figures for each rank."""
    records = runner.files(job)
    if failure is not None or not all(path.is_file() for path in records):
        return TrainingRun(job.name, failure=failure)
    figures = [json.loads(path.with_suffix(".json").read_text()) for path in records]
    worst = {
        **figures[0],
        "peak_bytes": max(each["peak_bytes"] for each in figures),
        "training_samples": sum(each["training_samples"] for each in figures),
        "validation_samples": [count for each in figures for count in each["validation_samples"]],
    }
    return TrainingRun(job.name, Record.load(records), worst)


def _refuse_unconverted(training: TrainingRun) -> None:
    """Fail the run of the converted side where a script trains a trial that is not converted."""
    if training.figures and not training.figures["is_deepspeed_trial"]:
        training.failure = Failure(0, "the converted side still trains a PyTorchTrial: ds-migrate left it as it is")


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def jobs_at_once(settings: Settings, ranks: int) -> int:
    """Return how many jobs may train at once: a core for each rank, and no more ranks than are needed anyway."""
    if settings.device != "cpu":
        return 1
    return max(1, min(cores(), max(2, *settings.ranks)) // ranks)
