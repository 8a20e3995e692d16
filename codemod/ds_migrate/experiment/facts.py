"""What the experiment configs say of each trial, gathered before the trial's source is planned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ds_migrate.experiment.model import ConfigFacts, ConfigFile, ScriptRun, TrialFacts
from ds_migrate.experiment.search_terms import may_name, needles
from ds_migrate.findings import TrialStatus

if TYPE_CHECKING:
    from ds_migrate.experiment.config_edit import Entry
    from ds_migrate.experiment.trial_lookup import Resolver
    from ds_migrate.experiment.yaml_nodes import Node


def facts_for(
    configs: Sequence[ConfigFile],
    trials: Sequence[TrialFacts],
    scripts: Mapping[Path, Sequence[ScriptRun]],
    *,
    root: Path | None = None,
) -> dict[tuple[Path, str], ConfigFacts]:
    """What the configs say of each trial, by (source path, class name), before the source is planned.

    Of ``trials`` only ``name`` and ``path`` count, besides ``aggregation_from_config``. Configs that cannot be read are
    left out: :func:`ds_migrate.experiment.planning` reports them.
    """
    wanted = [_as_converted(trial) for trial in trials]
    names = needles(wanted, scripts)
    gathered: dict[tuple[Path, str], list[_Sighting]] = {}
    resolver: Resolver | None = None
    for config in configs:
        if not names or not may_name(config.data, names):
            continue
        if resolver is None:
            from ds_migrate.experiment.trial_lookup import Resolver

            resolver = Resolver(wanted, scripts, root)
        for entry, node in _entries(config, resolver):
            for trial in entry.trials:
                gathered.setdefault((trial.path, trial.name), []).append(_sight(config, entry, node))
    return {key: _facts(sightings) for key, sightings in gathered.items()}


def _as_converted(trial: TrialFacts) -> TrialFacts:
    return replace(trial, status=TrialStatus.CONVERTED)


def _entries(config: ConfigFile, resolver: Resolver) -> Iterator[tuple[Entry, Node]]:
    from ds_migrate.experiment.config_edit import Entry, find_entry
    from ds_migrate.experiment.yaml_nodes import UnreadableError
    from ds_migrate.experiment.yaml_text import read

    try:
        roots = read(config.data).roots
    except UnreadableError:
        return
    for root in roots:
        entry = find_entry(root, config.path, resolver)
        if isinstance(entry, Entry):
            yield entry, root


@dataclass(frozen=True)
class _Sighting:
    """What one config says."""

    path: Path
    k: int
    averages: bool
    slots: int | None
    hparams: Mapping[str, tuple[object, ...]]
    launchers: frozenset[str]


def _sight(config: ConfigFile, entry: Entry, root: Node) -> _Sighting:
    from ds_migrate.experiment import values

    k, averages = values.accumulation(root, entry.trials, entry.platform_starts_trial)
    return _Sighting(config.path, k, averages, values.slots(root), values.hparams(root), entry.launchers)


def _facts(sightings: Sequence[_Sighting]) -> ConfigFacts:
    hparams: dict[str, tuple[object, ...]] = {}
    for sighting in sightings:
        for name, values in sighting.hparams.items():
            seen = hparams.setdefault(name, ())
            hparams[name] = (*seen, *(v for v in values if not any(v == s and type(v) is type(s) for s in seen)))
    return ConfigFacts(
        configs=tuple(dict.fromkeys(s.path for s in sightings)),
        aggregation=frozenset(s.k for s in sightings),
        averages=frozenset(s.averages for s in sightings if s.k > 1),
        slots=frozenset(s.slots for s in sightings if s.slots is not None),
        hparams=hparams,
        always=frozenset.intersection(*(frozenset(s.hparams) for s in sightings)),
        launchers=frozenset().union(*(s.launchers for s in sightings)),
    )
