"""Families of trials converted side by side: those of one folder together, folders on as many processes as it pays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ds_migrate import ds_config
from ds_migrate.conversion.processes import cores, spread
from ds_migrate.conversion.rule_context import Findings
from ds_migrate.conversion.unit import Conversion
from ds_migrate.experiment import ConfigFacts, TrialFacts
from ds_migrate.findings import Finding

# Bytes of source before one more process pays: a tenth of a second of work, where a process costs 0.03 s.
_PAYS = 25_000


@dataclass(frozen=True)
class _Outcome:
    """What there is to know of a conversion once its parsed files are let go."""

    problems: list[tuple[Path, Finding]]
    findings: Findings
    outputs: dict[Path, bytes]
    facts: list[TrialFacts]


def convert_all(
    conversions: Sequence[Conversion],
    said: Mapping[tuple[Path, str], ConfigFacts],
    jobs: int | None,
    progress: Callable[[int, int], None],
) -> list[TrialFacts]:
    """Model, plan and check every conversion; what there is to know of their trials, in their order.

    ``said``: what experiment configs say of each trial. ``jobs``: how many processes, None for as many as pay.
    """
    groups = _by_folder(conversions)
    outcomes = spread(
        lambda number: _converted(groups[number], said),
        len(groups),
        jobs or min(cores(), 1 + _size(conversions) // _PAYS),
        _dumps,
        _loads,
        lambda taken: progress(sum(map(len, groups[:taken])), len(conversions)),
    )
    facts: dict[str, list[TrialFacts]] = {}
    for group, answers in zip(groups, outcomes, strict=True):
        for conversion, outcome in zip(group, answers or map(_lost, group), strict=True):
            conversion.problems, conversion.findings = outcome.problems, outcome.findings
            conversion.outputs = outcome.outputs
            facts[conversion.unit] = outcome.facts
    return [fact for conversion in conversions for fact in facts[conversion.unit]]


def _dumps(outcomes: list[_Outcome]) -> bytes:
    import pickle  # one process needs none

    return pickle.dumps(outcomes)


def _loads(data: bytes) -> list[_Outcome]:
    import pickle

    outcomes: list[_Outcome] = pickle.loads(data)
    return outcomes


def _size(conversions: Sequence[Conversion]) -> int:
    return sum(len(c.read(path) or b"") for c in conversions for path in c.family.files)


def _converted(neighbours: Sequence[Conversion], said: Mapping[tuple[Path, str], ConfigFacts]) -> list[_Outcome]:
    """Parsed files are large: they are held for one group at a time."""
    for conversion in neighbours:
        conversion.attempt(partial(conversion.model, said))
    paths = ds_config.choose_paths((f.path, f.name, f.ds_config) for c in neighbours for f in c.facts())
    outcomes = []
    for conversion in neighbours:
        conversion.attempt(partial(conversion.plan, paths))
        outcomes.append(_outcome(conversion, paths))
        conversion.close()
    return outcomes


def _outcome(conversion: Conversion, paths: Mapping[tuple[Path, str], Path]) -> _Outcome:
    facts = list(conversion.facts(paths))
    return _Outcome(conversion.problems, conversion.findings, conversion.outputs, facts)


def _lost(conversion: Conversion) -> _Outcome:
    """Of a conversion that took its process with it."""

    def fail() -> None:
        raise ChildProcessError("the process that converted it was ended")

    conversion.attempt(fail)
    return _outcome(conversion, {})


def _by_folder(conversions: Sequence[Conversion]) -> list[list[Conversion]]:
    """Conversions in groups: those with trials in one folder choose the names of their DeepSpeed configs together."""
    groups: list[tuple[set[Path], list[Conversion]]] = []
    for conversion in conversions:
        folders = {trial.path.parent for trial in conversion.family.trials}
        near = [group for group in groups if group[0] & folders]
        groups = [group for group in groups if group not in near]
        groups.append((folders.union(*(f for f, _ in near)), [*(c for _, cs in near for c in cs), conversion]))
    return [members for _, members in groups]
