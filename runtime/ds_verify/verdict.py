"""The verdict: same or different, the first step that differs, and a possible explanation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ds_migrate.findings import Finding, Severity
from ds_migrate.rules.codes import Code
from ds_migrate.rules.pages import page_of

from ds_verify.compare import Difference, compare, gaps
from ds_verify.failure import Failure
from ds_verify.record import Key, Kind
from ds_verify.runs import Round
from ds_verify.sample_metrics import moved_samples


@dataclass
class Outcome:
    """The result of one comparison: with one number of ranks, as converted or at a further stage.

    Attributes:
        ranks: number of processes. stage: the ZeRO stage of a further run; None: as converted.
        differences: first step first.
        values: how many numbers were compared.
        largest: the largest gap, where it is, and the limit there; None when nothing was compared.
        noise: final weights that rounding alone decides, with the control's spread.
        failure: the converted trial raised.
        weak_from: the batch from which on rounding alone moves a metric by more than 0.1%, so that the proof is weak.
        moved: metrics that count samples, and in which one fell otherwise than in the original; each with its first
            place.
        unit: of steps, "batch" or, in a plain script, "step".
    """

    ranks: int
    stage: int | None = None
    differences: list[Difference] = field(default_factory=list)
    values: int = 0
    largest: tuple[float, Key, float] | None = None
    noise: dict[str, float] = field(default_factory=dict)
    failure: Failure | None = None
    weak_from: int | None = None
    moved: dict[str, Key] = field(default_factory=dict)
    unit: str = "batch"

    @property
    def label(self) -> str:
        """The comparison's name, such as "1 rank", or "2 ranks, ZeRO 1"."""
        ranks = ranks_named(self.ranks)
        return ranks if self.stage is None else f"{ranks}, ZeRO {self.stage}"

    @property
    def same(self) -> bool:
        """True when nothing differs."""
        return self.failure is None and not self.differences

    @property
    def first(self) -> str:
        """The first difference in words."""
        if self.failure is not None:
            return f"{self.unit} {self.failure.step + 1}{self.failure.occasion}: {self.failure.reason}"
        if not self.differences:
            return ""
        difference = self.differences[0]
        gap = f" by {difference.gap:.2g} (limit {difference.limit:.2g})" if difference.gap != float("inf") else ""
        where = f"before the first {self.unit}" if difference.key.step == 0 else f"{self.unit} {difference.key.step}"
        return f"{where}: {difference.key}{gap}: {difference.reason}"


_LOOK_AT: dict[Kind, str] = {
    "setup": "how the config's sizes and lengths were written",
    "initial": "what runs before training: seeds, loading of weights, the order in which models are made",
    "lr": "the optimizer's learning rate, and where its schedule steps",
    "training": "the data of each rank, the forward pass, the loss and its backward pass",
    "gradient": "the backward pass: accumulation, clipping, averaging over ranks, which parameters the optimizer has",
    "window": "reducers, and which batches are averaged",
    "validation": "the evaluation: train() and eval(), buffers, the data of each rank",
    "norm": "the step: clipping, accumulation, weight decay, which parameters the optimizer has",
    "saved": "the saving: which model, under which keys, and the condition on it",
    "state": "what happens after the last step, and weights that no step moves",
}


_LOOK_AT_IN_SCRIPT: dict[Kind, str] = {
    "setup": "each optimizer.step() that engine.step() has to replace",
    "lr": "the optimizer's options, the clipping, and where schedules step",
    "training": "the data of each rank, the forward pass and the loss",
}


def advice(outcomes: Sequence[Outcome]) -> str:
    """Return where to look after the first difference; empty where there is none."""
    parted = next((each for each in outcomes if each.differences), None)
    if parted is None:
        return ""
    places = _LOOK_AT if parted.unit == "batch" else _LOOK_AT | _LOOK_AT_IN_SCRIPT
    return f"look at {places[parted.differences[0].key.kind]}"


def outcome(trained: Round, stage: int | None = None, unit: str = "batch") -> Outcome:
    """Compare one run of the converted trial with the original's of the same round."""
    converted = trained.converted if stage is None else trained.swept[stage]
    if converted.failure is not None:
        return Outcome(trained.ranks, stage, failure=converted.failure, unit=unit)
    original, limits = trained.original.record, trained.limits(converted)
    found = Outcome(trained.ranks, stage, compare(original, converted.record, limits), unit=unit)
    found.noise = limits.driven_by_noise()
    found.weak_from = limits.weak_from(original)
    found.moved = moved_samples(original, converted.record, limits.jumps, limits.floor)
    measured = [(gap, key) for key, gap in gaps(original, converted.record) if key.kind not in ("setup", "lr")]
    found.values = sum(value.size for value in converted.record.values.values())
    if measured:
        gap, key = max(measured, key=lambda pair: pair[0])
        found.largest = (gap, key, limits.of(key, original.values[key]))
    return found


def explanations(findings: Sequence[tuple[str, Finding]]) -> list[tuple[str, Finding]]:
    """Return the review findings that may change numbers, as the pages of their rules state."""
    changing = {code for code in Code if not page_of(code).sections["Numbers"].startswith("Unchanged.")}
    return [(name, found) for name, found in findings if found.severity is Severity.REVIEW and found.code in changing]


def ranks_named(ranks: int) -> str:
    """Return "1 rank", "2 ranks" and so on."""
    return "1 rank" if ranks == 1 else f"{ranks} ranks"


def headline(outcomes: Sequence[Outcome], steps: int | str) -> str:
    """Return the verdict in one line; `steps` is how many were trained."""
    wrong = [each for each in outcomes if not each.same]
    if wrong:
        return f"different: with {wrong[0].label} from {wrong[0].first}"
    measured = [each.largest for each in outcomes if each.largest is not None]
    gap, _, limit = max(measured, key=lambda found: found[0], default=(0.0, None, 0.0))
    exact = f"largest gap {gap:.1e}, limit {limit:.1e}" if gap else "bitwise"
    ranks = {each.ranks for each in outcomes}
    stages = {each.stage for each in outcomes if each.stage is not None}
    where = f"{_listed(ranks)} {'rank' if ranks == {1} else 'ranks'}"
    where += f", at ZeRO stages {_listed(stages)} as well" if stages else ""
    weak = min((each.weak_from for each in outcomes if each.weak_from is not None), default=None)
    unit = outcomes[0].unit
    caution = "" if weak is None else f"; weak from {unit} {weak} on, where rounding alone moves a metric by over 0.1%"
    return f"same: {steps} {plural(unit)} with {where} ({exact}){caution}"


def plural(unit: str) -> str:
    """Return the plural of a unit of steps."""
    return "batches" if unit == "batch" else f"{unit}s"


def _listed(numbers: set[int]) -> str:
    *first, last = (str(number) for number in sorted(numbers))
    return f"{', '.join(first)} and {last}" if first else last
