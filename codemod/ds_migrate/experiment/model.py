"""The facts that experiment configs need of trials, and those that they state about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ds_migrate.findings import TrialStatus

ScriptRun = str | tuple[Path, str]  # a trial that a script runs: class name, or (source, class name)


@dataclass(frozen=True)
class TrialFacts:
    """One trial class as its experiment configs see it.

    ``path``: absolute path of the source file. ``ds_config``: the static DeepSpeed config of the trial, and
    ``ds_config_path`` the absolute path of the JSON file that holds it.

    ``aggregation``: the literal ``aggregation_frequency`` that the script gives to ``pytorch.init``, None when it gives
    none; ``aggregation_from_config`` means that the script passes on the value of the experiment config. Only configs
    with a script entrypoint look at these two: with ``module:Class`` the platform read the experiment config.
    ``aggregations``: likewise, by the file that calls ``pytorch.init``; None where it is no constant. It is empty where
    all that is known is ``aggregation``.

    ``sums_gradients``: whether the converted code calls ``backward(..., scale_wrt_gas=False)``, because of
    ``average_aggregated_gradients: false`` in the configs; None when the source decides that by itself.
    ``reads_deepspeed_config``: the source reads the hyperparameter
    ``deepspeed_config``; it makes the configs of a trial that an earlier run converted follow. ``names_ds_config``: it
    falls back to the file at ``ds_config_path``, as converted source does. ``unpacks_hparams``: it unpacks its
    hyperparameters into a call that may take no further one.
    """

    name: str
    path: Path
    status: TrialStatus
    ds_config: Mapping[str, object]
    ds_config_path: Path
    aggregation: int | None = None
    aggregation_from_config: bool = False
    aggregations: Mapping[Path, int | None] = field(default_factory=dict)
    sums_gradients: bool | None = False
    reads_deepspeed_config: bool = False
    names_ds_config: bool = False
    unpacks_hparams: bool = False

    @classmethod
    def expected(cls, path: Path, name: str) -> TrialFacts:
        """Return the facts of a trial that is not converted yet."""
        return cls(name, path, TrialStatus.CONVERTED, {}, path.with_name("ds_config.json"))

    def aggregation_in(self, scripts: Sequence[Path]) -> int | None:
        """Return the ``aggregation_frequency`` with which these scripts train it; None when it cannot be determined."""
        if not self.aggregations:
            return self.aggregation or 1
        own = {self.aggregations[script] for script in scripts if script in self.aggregations}
        found = own or set(self.aggregations.values())
        return found.pop() if len(found) == 1 else None

    @property
    def configs_follow(self) -> bool:
        """Return whether the experiment configs that name this trial are to be edited."""
        if self.status is TrialStatus.CONVERTED:
            return True
        return self.status is TrialStatus.ALREADY_DEEPSPEED and self.reads_deepspeed_config


@dataclass(frozen=True)
class ConfigFacts:
    """The facts that the experiment configs of one trial state, for the decisions about its source.

    ``configs``: the files. ``aggregation``: the values of ``aggregation_frequency`` that take effect (1 when absent).
    ``averages``: the values of ``average_aggregated_gradients`` in the configs that accumulate (K > 1), so empty when
    none does. ``slots``: the values of ``slots_per_trial``. ``hparams``: hyperparameters that some config sets, with
    the constants seen (a search space adds nothing to the tuple). ``always``: those that every config sets.
    ``launchers``: ``"torch_distributed"``, ``"horovod"``, ... and ``""`` for no launch layer.
    ``unreadable``: files that configure the trial and cannot be parsed, each with the reason and a way out.
    """

    configs: tuple[Path, ...] = ()
    aggregation: frozenset[int] = frozenset()
    averages: frozenset[bool] = frozenset()
    slots: frozenset[int] = frozenset()
    hparams: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    always: frozenset[str] = frozenset()
    launchers: frozenset[str] = frozenset()
    unreadable: tuple[tuple[Path, str, str], ...] = ()
