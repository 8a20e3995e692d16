"""Input and result of a conversion: values that can be pickled, so that any process can convert them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ds_migrate.experiment import ConfigFacts, TrialFacts
from ds_migrate.findings import FileResult
from ds_migrate.options import Options
from ds_migrate.project.trial_class import TrialClass
from ds_migrate.upgrade.result import Notice


@dataclass(frozen=True)
class ConversionUnit:
    """The inputs of the conversion of one group of trials.

    ``sources``: every file of the group, by path. ``writable``: those of them, and the experiment configs, that may be
    written. ``others``: trials in these files that cannot be converted and need the files unchanged. ``accepted``: line
    and code of the findings that comments accept, by file. ``config_facts``: what experiment configs state, by trial.
    ``upgraded``: what the upgrade of old trials did in the files that are read in their new form.
    ``library``: files with base classes of libraries, which are read along and not written. ``used_beside``: classes
    and functions of the sources that other files of the project name. ``helpers``: imported files that stay as they
    are and define what the sources use.
    """

    trials: tuple[TrialClass, ...]
    others: tuple[TrialClass, ...]
    sources: Mapping[Path, bytes]
    writable: frozenset[Path]
    accepted: Mapping[Path, frozenset[tuple[int, str]]]
    options: Options
    config_facts: Mapping[tuple[Path, str], ConfigFacts]
    upgraded: Mapping[Path, tuple[Notice, ...]] = field(default_factory=dict)
    library: Mapping[Path, bytes] = field(default_factory=dict)
    used_beside: frozenset[str] = frozenset()
    helpers: Mapping[Path, bytes] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of what is written together."""
        return ":".join(map(str, self.trials[0].key))

    @property
    def size(self) -> int:
        """Bytes of source."""
        return sum(map(len, self.sources.values()))


@dataclass(frozen=True)
class UnitResult:
    """The result of a unit: its files as a report shows them (paths resolved), and its trials as configs see them."""

    unit: str
    files: tuple[FileResult, ...]
    trials: tuple[TrialFacts, ...]
