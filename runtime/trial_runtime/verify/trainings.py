"""All runs of one verification: which there are, and what became of each."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trial_runtime.verify.choose import Choice, info_of, plan_of
from trial_runtime.verify.limits import FLOORS, Limits
from trial_runtime.verify.processes import Failure, Job, RunOrder, run_job
from trial_runtime.verify.record import Record
from trial_runtime.verify.sources import Sides


@dataclass(frozen=True)
class Settings:
    """How the sides are trained and compared.

    Attributes:
        steps: micro-batches. ranks: world sizes, one after another. device: ``"cpu"`` or ``"cuda"``.
        zero_sweep: further runs of the converted trial, each at one stage.
        oracle: train the original on the real ``determined``; it is not saved and resumed then.
        tolerance: in place of the measured one. idle: seconds without progress before a run counts as stuck.
        seed: where the config names none.
    """

    steps: int = 50
    ranks: Sequence[int] = (1, 2)
    device: str = "cpu"
    zero_sweep: Sequence[int] = ()
    oracle: bool = False
    tolerance: float | None = None
    idle: float = 600.0
    seed: int = 7


@dataclass
class Training:
    """One run: its record and figures, or why it has none.

    figures: ``seconds_a_batch``, ``samples`` of a batch on all ranks, ``peak_bytes`` of the rank that needs most.
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
    limits: Limits
    swept: dict[int, Training] = field(default_factory=dict)


def train_all(
    sides: Sides, choice: Choice, settings: Settings, work: Path, progress: Callable[[str, int, int], None]
) -> Iterator[Round]:
    """Train both sides with each number of ranks, one round after another.

    Args:
        progress: called with what is training, how many micro-batches it has done, and of how many.

    Raises:
        ConfigError: the config cannot be run with so many ranks.
    """
    for ranks in settings.ranks:
        original = _order(sides.original, choice, ranks, work, f"original-{ranks}ranks", resumed=not settings.oracle)
        control = replace(original, name=f"control-{ranks}ranks", resumed=False, nudge=True)
        converted = _order(
            sides.converted, choice, ranks, work, f"converted-{ranks}ranks", host=settings.device == "cpu"
        )
        reference, nudged = _train([original, control], ranks, settings, work, progress, settings.oracle)
        there = reference.failure is None
        trained = _train([converted], ranks, settings, work, progress)[0] if there else Training(converted.name)
        done = Round(ranks, reference, nudged, trained, _limits(reference, nudged, settings))
        for stage in settings.zero_sweep if there else ():
            swept = _order(
                sides.converted, choice, ranks, work, f"converted-{ranks}ranks-zero{stage}", zero=stage,
                host=settings.device == "cpu",
            )  # fmt: skip
            done.swept[stage] = _train([swept], ranks, settings, work, progress)[0]
        yield done


def _order(
    folder: Path,
    choice: Choice,
    ranks: int,
    work: Path,
    name: str,
    *,
    zero: int | None = None,
    resumed: bool = True,
    host: bool = False,
) -> RunOrder:
    plan = plan_of(choice, folder, ranks, zero)
    seed = Settings.seed if plan.seed is None else plan.seed
    info = info_of(plan, work / "runs" / name, seed)
    entry = plan.entrypoint
    return RunOrder(
        name, str(folder), entry.kind, entry.target, list(entry.args), json.loads(info.to_json()), resumed, False, host
    )


def _train(
    orders: list[RunOrder],
    ranks: int,
    settings: Settings,
    work: Path,
    progress: Callable[[str, int, int], None],
    oracle: bool = False,
) -> list[Training]:
    job = Job(
        orders, ranks, settings.steps, int(orders[0].info["trial"]["trial_seed"]), oracle, settings.device,
        work / "jobs" / orders[0].name, work / "records", settings.idle,
    )  # fmt: skip
    failures = run_job(job, lambda name, step: progress(name, step, settings.steps))
    trainings = []
    for order in orders:
        failure = failures.get(order.name)
        files = [job.records / f"{order.name}.rank{rank}" for rank in range(ranks)]
        if failure is not None or not files[0].with_suffix(".rank0.npz").is_file():
            trainings.append(Training(order.name, failure=failure))
            continue
        record = Record.load(file.with_suffix(f"{file.suffix}.npz") for file in files)
        figures = [json.loads(file.with_suffix(f"{file.suffix}.json").read_text()) for file in files]
        worst = {**figures[0], "peak_bytes": max(each["peak_bytes"] for each in figures)}
        trainings.append(Training(order.name, record, worst))
    return trainings


def _limits(original: Training, control: Training, settings: Settings) -> Limits:
    precision = _precision(original.record)
    floor = FLOORS[precision, settings.device]
    return Limits.measured(original.record, control.record, floor, settings.tolerance)


def _precision(record: Record) -> str:
    """The coarsest precision that the original's weights have; metrics of half precision come as float32."""
    kinds = {str(value.dtype) for key, value in record.values.items() if key.kind == "state"}
    return next((kind for kind in ("bfloat16", "float16") if kind in kinds), "float32")
