"""All runs of one verification: which there are, and what became of each."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ds_verify.job import Failure, Job, RunOrder, run_jobs
from ds_verify.launchers import Launchers
from ds_verify.record import Record
from ds_verify.select_trial import Choice, info_of, plan_of
from ds_verify.tolerance import FLOORS, Limits
from ds_verify.working_copies import Sides


@dataclass(frozen=True)
class Settings:
    """How the sides are trained and compared.

    Attributes:
        steps: micro-batches. ranks: world sizes, one after another. device: ``"cpu"`` or ``"cuda"``.
        zero_sweep: further runs of the converted trial, each at one stage.
        oracle: train the original on the real ``determined``; it is not saved and resumed then.
        tolerance: in place of the measured one. idle: seconds without progress before a run counts as stuck.
        deepspeed: settings of the converted trial's DeepSpeed config, by dotted name.
        seed: where the config names none.
    """

    steps: int = 50
    ranks: Sequence[int] = (1, 2)
    device: str = "cpu"
    zero_sweep: Sequence[int] = ()
    oracle: bool = False
    tolerance: float | None = None
    idle: float = 600.0
    deepspeed: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 7


@dataclass
class Training:
    """One run: its record and figures, or why it has none.

    figures: ``seconds_a_batch``, ``samples`` of a batch on all ranks, ``peak_bytes`` of the rank that needs most,
    ``precision`` of the weights.
    """

    name: str
    record: Record = field(default_factory=Record)
    figures: dict[str, Any] = field(default_factory=dict)
    failure: Failure | None = None


@dataclass
class Round:
    """What was trained with one number of ranks. `swept`: the converted trial at further stages."""

    ranks: int
    original: Training
    control: Training
    converted: Training
    settings: Settings
    swept: dict[int, Training] = field(default_factory=dict)

    def limits(self, converted: Training) -> Limits:
        """From which gap on `converted` differs: as the control shows, and the floor of the coarser precision."""
        kinds = [side.figures.get("precision", "float32") for side in (self.original, converted)]
        precision = next((kind for kind in ("bfloat16", "float16") if kind in kinds), "float32")
        floor = FLOORS[precision, self.settings.device]
        return Limits.measured(self.original.record, self.control.record, floor, self.settings.tolerance)


@dataclass
class Trainings:
    """Trains both sides, round after round.

    Attributes:
        work: a folder for records, checkpoints and logs.
        progress: called with what is training, how many micro-batches it has done, and of how many.
        launchers: start the ranks.
    """

    sides: Sides
    choice: Choice
    settings: Settings
    work: Path
    progress: Callable[[str, int, int], None]
    launchers: Launchers

    def rounds(self) -> Iterator[Round]:
        """Train with each number of ranks.

        Raises:
            ConfigError: the config cannot be run with so many ranks.
        """
        for ranks in self.settings.ranks:
            original = self._order(self.sides.original, f"original-{ranks}ranks", ranks)
            original = replace(original, resumed=not self.settings.oracle)
            control = replace(original, name=f"control-{ranks}ranks", nudge=True)
            converted = self._converted(f"converted-{ranks}ranks", ranks)
            swept = {
                stage: self._converted(f"{converted.name}-zero{stage}", ranks, stage)
                for stage in self.settings.zero_sweep
            }
            orders = [original, converted, control, *swept.values()]
            trained = self._train(orders, {original.name, control.name}, ranks)
            yield Round(
                ranks,
                trained[original.name],
                trained[control.name],
                trained[converted.name],
                self.settings,
                {stage: trained[order.name] for stage, order in swept.items()},
            )

    def _converted(self, name: str, ranks: int, stage: int | None = None) -> RunOrder:
        changes = dict(self.settings.deepspeed)
        if stage is not None:
            changes["zero_optimization.stage"] = stage
        order = self._order(self.sides.converted, name, ranks, changes)
        return replace(order, host_batches=self.settings.device == "cpu")

    def _order(self, folder: Path, name: str, ranks: int, changes: Mapping[str, Any] | None = None) -> RunOrder:
        plan = plan_of(self.choice, folder, ranks, changes)
        seed = self.settings.seed if plan.seed is None else plan.seed
        info = info_of(plan, self.work / "runs" / name, seed)
        entry = plan.entrypoint
        return RunOrder(
            name=name,
            context=str(folder),
            kind=entry.kind,
            target=entry.target,
            args=list(entry.args),
            info=json.loads(info.to_json()),
            environment=plan.environment,
        )

    def _train(self, orders: Sequence[RunOrder], originals: Collection[str], ranks: int) -> dict[str, Training]:
        """Train `orders`, the first of which the others are compared with; each run has separate processes.

        originals: the names of those that run the original's code.
        """
        at_once = _jobs_at_once(self.settings, ranks)
        jobs = [
            Job(
                runs=[order],
                ranks=ranks,
                steps=self.settings.steps,
                seed=int(orders[0].info["trial"]["trial_seed"]),
                oracle=self.settings.oracle and order.name in originals,
                device=self.settings.device,
                launcher=self.launchers.original if order.name in originals else self.launchers.converted,
                directory=self.work / "jobs" / order.name,
                records=self.work / "records",
                idle=self.settings.idle,
                threads=max(1, _cores() // (ranks * at_once)),
                is_required=order is orders[0],
            )
            for order in orders
        ]
        failures = run_jobs(jobs, at_once, lambda name, step: self.progress(name, step, self.settings.steps))
        return {job.runs[0].name: _collected(job.runs[0].name, job, failures) for job in jobs}


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _jobs_at_once(settings: Settings, ranks: int) -> int:
    """Return how many jobs may train side by side: a core for each rank, and no more ranks than are needed anyway."""
    if settings.device != "cpu":
        return 1
    return max(1, min(_cores(), max(2, *settings.ranks)) // ranks)


def _collected(name: str, job: Job, failures: Mapping[str, Failure]) -> Training:
    """Return what a run left behind: one record and one file of figures for each rank."""
    failure = failures.get(name)
    records = [job.records / f"{name}.rank{rank}.npz" for rank in range(job.ranks)]
    if failure is not None or not all(path.is_file() for path in records):
        return Training(name, failure=failure)
    figures = [json.loads(path.with_suffix(".json").read_text()) for path in records]
    worst = {**figures[0], "peak_bytes": max(each["peak_bytes"] for each in figures)}
    return Training(name, Record.load(records), worst)
