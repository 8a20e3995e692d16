"""The facts that experiment configs state about each trial, before its source is converted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ds_migrate.experiment import values
from ds_migrate.experiment.entry import Entry
from ds_migrate.experiment.model import ConfigFacts
from ds_migrate.experiment.planning import ParsedConfig
from ds_migrate.experiment.yaml_nodes import Node


def facts_for(configs: Iterable[ParsedConfig]) -> dict[tuple[Path, str], ConfigFacts]:
    """Return what the configs state about each trial, by (source path, class name)."""
    gathered: dict[tuple[Path, str], list[_Sighting]] = {}
    unreadable: dict[tuple[Path, str], list[tuple[Path, str, str]]] = {}
    for config in configs:
        for trial in config.names if config.binds else ():
            unreadable.setdefault((trial.path, trial.name), []).append((config.file.path, *config.reason_and_advice))
        for i, entry in config.entries:
            assert config.source is not None
            sighting = _sighting(config.file.path, entry, config.source.roots[i])
            for trial in entry.trials:
                gathered.setdefault((trial.path, trial.name), []).append(sighting)
    facts = {key: _facts(sightings) for key, sightings in gathered.items()}
    for key, files in unreadable.items():
        facts[key] = replace(facts.get(key, ConfigFacts()), unreadable=tuple(files))
    return facts


@dataclass(frozen=True)
class _Sighting:
    """The facts of one config."""

    path: Path
    k: int
    averages: bool
    slots: int | None
    hparams: Mapping[str, tuple[object, ...]]
    launchers: frozenset[str]


def _sighting(path: Path, entry: Entry, root: Node) -> _Sighting:
    k, averages = values.accumulation(root, entry.trials, entry.platform_starts_trial)
    return _Sighting(path, k, averages, values.slots(root), values.hparams(root), entry.launchers)


def _facts(sightings: Sequence[_Sighting]) -> ConfigFacts:
    hparams: dict[str, tuple[object, ...]] = {}
    for sighting in sightings:
        for name, given in sighting.hparams.items():
            seen = hparams.setdefault(name, ())
            hparams[name] = (*seen, *(v for v in given if not any(v == s and type(v) is type(s) for s in seen)))
    return ConfigFacts(
        configs=tuple(dict.fromkeys(s.path for s in sightings)),
        aggregation=frozenset(s.k for s in sightings),
        averages=frozenset(s.averages for s in sightings if s.k > 1),
        slots=frozenset(s.slots for s in sightings if s.slots is not None),
        hparams=hparams,
        always=frozenset.intersection(*(frozenset(s.hparams) for s in sightings)),
        launchers=frozenset().union(*(s.launchers for s in sightings)),
    )
