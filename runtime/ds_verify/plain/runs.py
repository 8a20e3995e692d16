"""All runs of the verification of a script."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ds_verify.failure import Failure
from ds_verify.job import Job, JobRunner
from ds_verify.launchers import Launcher
from ds_verify.plain.printed_lines import printed_otherwise
from ds_verify.plain.run_results import append_resumed, parted, saved_by_several, varying
from ds_verify.plain.sides import copy_for_run
from ds_verify.runs import Progress, Round, Settings, TrainingRun, collect, cores, jobs_at_once
from ds_verify.verdict import ranks_named
from ds_verify.working_copies import Sides, mentions_cuda

# In the error of a script that starts several ranks by one of its arguments, which is missing.
_OTHER_RANKS = "by the script's own arguments"


@dataclass(frozen=True)
class PlainJob(Job):
    """One run of a script; `context` is a copy of its side, `target` the script in it.

    Attributes:
        side: ``"original"`` or ``"converted"``.
        first: the number of steps before this run, which resumes another one.
        saves_from: end when a checkpoint is written, after so many steps at least; 0: do not.
        is_parted: share the loaders that train among the ranks, in a script that knows nothing of ranks.
        loaders: the site of each loader of the original on one rank, and whether it trains.
        read_loaders: the sites of those that were read.
        path: folders of `context` that PYTHONPATH has, relative to it.
        source: the folder that `context` is a copy of; empty where that is not known.
    """

    worker: str = "ds_verify.plain.worker"
    side: str = "original"
    first: int = 0
    saves_from: int = 0
    is_parted: bool = False
    loaders: Sequence[tuple[str, bool]] = ()
    read_loaders: Sequence[str] = ()
    path: Sequence[str] = ()
    source: str = ""


@dataclass
class ScriptRuns:
    """Runs both sides of a script, round after round.

    Attributes:
        script: relative to both sides. arguments: of the script.
        resume_arguments: more of them, with which it resumes from its checkpoint; none: it is not resumed.
        work: a folder for records, copies and logs.
        progress: called from time to time.
        launcher: starts the ranks.
        path: folders with modules beside the script's own, relative to both sides.
        source: the user's folder, of which both sides are copies.
        notes: what a reader of the verdict has to know, gathered from the runs.
        alone: the figures of the original on one rank, which has to train before it trains on several.
    """

    sides: Sides
    script: Path
    arguments: Sequence[str]
    resume_arguments: Sequence[str]
    settings: Settings
    work: Path
    progress: Callable[[Progress], None]
    launcher: Launcher
    path: Sequence[str] = ()
    source: Path | None = None
    notes: list[str] = field(default_factory=list)
    alone: dict[str, Any] = field(default_factory=dict)
    _steps: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        folders = (self.sides.original, self.sides.converted)
        self.replaces_cuda = self.settings.device == "cpu" and any(mentions_cuda(folder) for folder in folders)
        self._runner = JobRunner(self.work, self.launcher, self.settings.idle)
        if self.replaces_cuda:
            self.notes.append("what the code sends to CUDA stays on the CPU, on both sides")

    def rounds(self) -> Iterator[Round]:
        """Train with each number of ranks, no further than the first with which the original does not train."""
        if min(self.settings.ranks) > 1:
            alone = self.train([self.job("original", "original-1ranks-loaders", 1)])[0]
            if alone.failure is not None:
                yield Round(1, alone, alone, alone, self.settings)
                return
            self.alone = alone.figures
        for ranks in self.settings.ranks:
            trained = self._round(ranks)
            yield trained
            if trained.original.failure is not None:
                return

    def _round(self, ranks: int) -> Round:
        original = self.job("original", f"original-{ranks}ranks", ranks)
        jobs = [
            original,
            self.job("converted", f"converted-{ranks}ranks", ranks),
            replace(self.job("original", f"control-{ranks}ranks", ranks), nudge=True),
        ]
        first, converted, control = self.train(jobs)
        if first.failure is None and (moved := varying(first, control)):
            first.failure = Failure(0, moved, varies=True)
        if converted.failure is None and converted.figures and not converted.figures["zero_stages"]:
            converted.failure = Failure(0, "the converted script makes no DeepSpeed engine")
        if converted.failure is None and converted.figures and (name := parted(converted, ranks)):
            text = f"RuntimeError: {name} is not the same on all ranks: each rank trains its own"
            converted.failure = Failure(converted.figures["steps"] - 1, text)
        if converted.failure is None and converted.figures and (path := self._saved_twice(jobs[0], jobs[1], first)):
            text = f"RuntimeError: several ranks save {path}: let rank 0 alone save it"
            converted.failure = Failure(converted.figures["steps"] - 1, text)
        if converted.failure is not None and _OTHER_RANKS in converted.failure.text:
            first.failure = converted.failure  # the original would train so many times beside itself
        self._align(first, control, converted)
        if ranks == 1:
            self.alone = first.figures
        self._note(first, ranks)
        self._note_printed(ranks, first, control, converted)
        return Round(ranks, first, control, converted, self.settings)

    def _saved_twice(self, original: PlainJob, converted: PlainJob, trained: TrainingRun) -> str:
        """Return the first file that several ranks of the conversion save, and none of the original's; else empty."""
        starts_ranks = original.is_parted and trained.figures["is_distributed"]  # with several ranks alone
        before = saved_by_several(self._runner.files(original), original.context if starts_ranks else "")
        after = saved_by_several(self._runner.files(converted))
        return os.path.relpath(after, converted.context) if after and not before else ""

    def _align(self, original: TrainingRun, control: TrainingRun, converted: TrainingRun) -> None:
        """Leave out what the sides have not both: weights after other numbers of steps, files of engines."""
        if not (original.figures and converted.figures):
            return
        left = set[str]()
        if original.figures["steps"] != converted.figures["steps"]:
            left.add("state")
        if converted.figures["has_engine_checkpoint"]:
            left.add("saved")
            self._add("the conversion saves through its engine: what is saved was not compared")
        for run in (original, control, converted):
            run.record.values = {key: value for key, value in run.record.values.items() if key.kind not in left}

    def job(self, side: str, name: str, ranks: int) -> PlainJob:
        """Return a job of one side, and make the copies that it runs in."""
        folder = self.sides.original if side == "original" else self.sides.converted
        context = copy_for_run(folder, self.work / "runs" / name)
        is_parted = side == "original" and ranks > 1 and not self.alone.get("is_distributed", False)
        if is_parted:
            for own in _rank_folders(context, ranks):  # else all ranks would write the same files
                copy_for_run(folder, own)
        settings = self.settings
        return PlainJob(
            name=name,
            context=str(context),
            kind="plain",
            target=str(self.script),
            args=list(self.arguments),
            info={},
            ranks=ranks,
            threads=max(1, cores() // (ranks * jobs_at_once(settings, ranks))),
            steps=settings.steps,
            seed=settings.seed,
            device=settings.device,
            hang=settings.hang,
            replaces_cuda=self.replaces_cuda,
            side=side,
            path=list(self.path),
            source=str(self.source or ""),
            saves_from=max(1, settings.steps // 2) if self.resume_arguments else 0,
            is_parted=is_parted,
            loaders=self.alone.get("loaders", []),
            read_loaders=self.alone.get("read_loaders", []),
        )

    def train(self, jobs: Sequence[PlainJob]) -> list[TrainingRun]:
        """Run jobs, and then what resumes them. Without the first one the others are worth nothing."""
        trained = self._run(jobs)
        resumed = [
            replace(
                job,
                name=f"{job.name}-resumed",
                args=[*job.args, *self.resume_arguments],
                first=training.figures["saved"],
                saves_from=0,
                nudge=False,
            )
            for job, training in zip(jobs, trained, strict=True)
            if self.resume_arguments and training.figures and 0 < training.figures["saved"] == training.figures["steps"]
        ]
        for job in resumed:
            _share_files(job)
        parts = {part.name: part for part in self._run(resumed)} if resumed else {}
        for training in trained:
            part = parts.get(f"{training.name}-resumed")
            if part is not None:
                append_resumed(training, part)
        return trained

    def _run(self, jobs: Sequence[PlainJob]) -> list[TrainingRun]:
        at_once = jobs_at_once(self.settings, jobs[0].ranks)
        failures = self._runner.run(jobs, at_once, self._report, required=jobs[0].name)
        return [collect(self._runner, job, failures.get(job.name)) for job in jobs]

    def _report(self, run: str, step: int) -> None:
        self._steps[run] = min(step, self.settings.steps)
        runs = len(self.settings.ranks) * 3 + (min(self.settings.ranks) > 1)
        runs *= 2 if self.resume_arguments else 1
        side, _, rest = run.partition("-")
        count, _, part = rest.partition("ranks")
        title = f"{side}, {count} rank{'s' * (count != '1')}" + part.replace("-", ", ")
        trained = sum(self._steps.values())
        self.progress(Progress(title, list(self._steps).index(run) + 1, runs, trained, runs * self.settings.steps))

    def _note(self, original: TrainingRun, ranks: int) -> None:
        figures = original.figures
        if not figures:
            return
        if figures["steps"] < self.settings.steps:
            self._add(f"with {ranks_named(ranks)} the script ends after {figures['steps']} steps of an optimizer")
        if self.resume_arguments and original.failure is None:
            self._note_resume(figures)
        if ranks == 1 or figures["is_distributed"] or original.failure is not None:
            return
        self._add(
            "the original knows nothing of ranks: on several, each one trained on its share and gradients were averaged"
        )
        if not any(trains for _, trains in self.alone.get("loaders", [])):
            self._add("it trains on no DataLoader: on several ranks each one trained on the same batches")
        if guessed := self.alone.get("guessed_loaders"):
            self._add(f"{', '.join(guessed)}: taken for training after one batch; more --steps show whether it is")
        for site in figures["unshared_loaders"]:
            self._add(f"{site}: ranks cannot share this loader: on several, each one read all of it")

    def _note_printed(self, ranks: int, *runs: TrainingRun) -> None:
        figures = [run.figures for run in runs]
        is_alike = all(figures) and len({each["steps"] for each in figures}) == 1
        if not is_alike or (ranks > 1 and not figures[0]["is_distributed"]):  # which prints means over no ranks
            return
        if found := printed_otherwise(*(each["printed"] for each in figures)):
            self._add(f"the conversion prints otherwise with {ranks_named(ranks)}: {found}")

    def _note_resume(self, figures: dict[str, Any]) -> None:
        if not figures.get("resumed"):
            self._add("no checkpoint was written in the second half of the steps, so nothing was resumed")
        elif figures["saved_at"] == figures["steps"]:
            self._add(
                "the resumed script ends without a further step: of what a checkpoint holds, only weights were compared"
            )

    def _add(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)


def _rank_folders(context: Path, ranks: int) -> list[Path]:
    """Return the copies of all ranks but the first, where ranks that know nothing of each other have one each."""
    return [context.with_name(f"{context.name}-rank{rank}") for rank in range(1, ranks)]


def _share_files(job: PlainJob) -> None:
    """Give all ranks the first one's files, which it resumes from: a conversion saves nothing else."""
    context = Path(job.context)
    for own in _rank_folders(context, job.ranks) if job.is_parted else ():
        shutil.rmtree(own)
        copy_for_run(context, own)
