"""The decisions on one trial's engines, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import libcst as cst

from ds_migrate.decisions.autocast import Autocast
from ds_migrate.decisions.engine_layout import Form
from ds_migrate.decisions.engine_location import EngineLocation
from ds_migrate.decisions.engine_options import EngineOptions
from ds_migrate.decisions.gradient_clipping import Clipping
from ds_migrate.decisions.zero_stage import ZeroStage
from ds_migrate.syntax.source import SourceFile
from ds_migrate.trial.model import Model, Optimizer, Trial


@dataclass(frozen=True)
class Accumulation:
    """``is_used``: some experiment config or script has aggregation_frequency > 1. ``averages``: the configs'
    ``average_aggregated_gradients``."""

    is_used: bool = False
    averages: bool = True


@dataclass(frozen=True, eq=False)
class EnginePlan:
    """Everything that is decided on a trial before its source is edited.

    ``managed``: DeepSpeed itself counts accumulation; False: ``step()`` alone is the boundary. ``averages_late``: the
    trial looks at gradients while they are sums over the micro-batches. ``clipping`` holds the optimizers that clip.
    ``engine_names``: the expression of each optimizer's engine in the converted code. ``raw_names``: the expression
    that ``deepspeed.initialize`` takes for a model or optimizer, where it is not the target (``net``).
    """

    trial: Trial
    accumulation: Accumulation
    location: EngineLocation
    form: Form
    managed: bool
    averages_late: bool
    zero: ZeroStage
    clipping: Mapping[Optimizer, Clipping]
    autocast: Autocast
    options: EngineOptions
    engine_names: Mapping[Optimizer, str]
    raw_names: Mapping[Model | Optimizer, str]

    @property
    def autocast_condition(self) -> str | None:
        """The condition of the engines' own autocast; None for never, as where ``--precision`` replaces it."""
        return self.autocast.condition if self.options.precision is None else None


@dataclass(frozen=True, eq=False)
class Blocked:
    """The reason why a trial gets no engines, its line, and what would unblock it."""

    trial: Trial
    file: SourceFile
    node: cst.CSTNode
    message: str
    help: str
