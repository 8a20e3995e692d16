"""Plan of one run from an experiment config: every value checked, every default in place."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trial_runtime._cluster_info import FitDefaults, Length
from trial_runtime._redaction import SECRETS_VARIABLE, masked, secrets_of, with_constants
from trial_runtime._storage.remote import OPTIONS_VARIABLE
from trial_runtime._storage.urls import CheckpointStorage, read_storage, section_of
from trial_runtime.train.config import entrypoint, hparams, unsupported_fields
from trial_runtime.train.config.deepspeed_config import check_deepspeed_config
from trial_runtime.train.config.defaults import with_defaults
from trial_runtime.train.config.environment_variables import read_environment
from trial_runtime.train.config.errors import ConfigError, Problems, Section, as_integer
from trial_runtime.train.config.lengths import Lengths, assigned_length
from trial_runtime.train.config.optimizations import Optimizations
from trial_runtime.train.config.searcher import check_single
from trial_runtime.train.config.trackers import read_trackers
from trial_runtime.train.search.assignment import Assignment

MAX_SEED = 2**31 - 1
_POLICIES = ("best", "all", "none")
_PROFILED_BATCHES = 5
"""How many batches are profiled where the config names no end: the trace of a whole training fits nowhere."""


@dataclasses.dataclass(frozen=True)
class RunPlan:
    """One run, checked and ready to start.

    Attributes:
        name: the experiment's name, for the run directory.
        context: the context directory (absolute): working directory of the ranks and first on their import path.
        document: the experiment config with defaults filled in, as ``get_experiment_config()`` shows it; no keys.
        slots: how many processes to start on this machine.
        seed: None when the config names none; then one is drawn.
        storage: where checkpoints go; None: into the run directory.
        environment: variables for the ranks.
        secrets: what is masked in ``document``, of the fields that a trial reads.
        precision: what ``--precision`` asks of the engines.
        log_with: experiment trackers that metrics are sent to.
        notices: ``(field, what happens to it)`` for each field that is not acted on.
        assignment: the trial of a search that this is; None: a single run.
    """

    name: str
    context: Path
    entrypoint: entrypoint.Entrypoint
    document: dict[str, Any]
    hparams: dict[str, Any]
    fit: FitDefaults
    slots: int
    seed: int | None
    searcher_metric: str | None
    smaller_is_better: bool
    storage: CheckpointStorage
    aggregation_frequency: int
    average_aggregated_gradients: bool
    max_restarts: int
    environment: dict[str, str]
    secrets: list[list[Any]]
    debug: bool
    precision: str | None
    log_with: tuple[str, ...]
    notices: list[tuple[str, str]]
    assignment: Assignment | None = None

    @property
    def secret_environment(self) -> dict[str, str]:
        """Return the variable that gives ranks what is masked in the run's description."""
        known = {"config": self.secrets, "hparams": secrets_of(self.hparams)}
        return {SECRETS_VARIABLE: json.dumps(known)} if any(known.values()) else {}

    @property
    def rank_environment(self) -> dict[str, str]:
        """Return the variables that the ranks get: the config's, the entrypoint's, the secrets."""
        keys = {} if self.storage.remote is None else {OPTIONS_VARIABLE: json.dumps(dict(self.storage.remote.options))}
        return {**self.environment, **dict(self.entrypoint.environment), **keys, **self.secret_environment}


def make_plan(
    document: dict[str, Any],
    source: str,
    context: Path,
    *,
    picks: Mapping[str, Any] | None = None,
    test_mode: bool = False,
    needs_length: bool = True,
    stop_on_nan: bool = False,
    precision: str | None = None,
    accelerator: str = "cpu",
    assignment: Assignment | None = None,
) -> RunPlan:
    """Check ``document`` and turn it into a plan.

    Args:
        document: the experiment config, with ``--config`` and ``--slots`` merged in; left as it is.
        source: how errors name the config.
        context: the context directory.
        picks: hyperparameters given on the command line, by dotted name.
        test_mode: train and validate one batch.
        needs_length: refuse a config that does not name for how long to train.
        stop_on_nan: end a run whose loss is NaN or infinite.
        precision: what the engines are to compute in; None: as their configs name it.
        accelerator: ``"cpu"`` or ``"cuda"``: which of the ``environment_variables`` hold.
        assignment: the trial of a search that is run: its hyperparameters, seed and length.

    Raises:
        ConfigError: one or more values cannot be run; the message lists all of them.
    """
    problems = Problems()
    root = Section(document, "", problems)
    entry = _entrypoint(root, context)
    if assignment is None:
        values = hparams.resolve(_mapping(root, "hyperparameters"), picks or {}, problems)
    else:
        values = with_constants(assignment.hparams, _mapping(root, "hyperparameters"))
    slots = max(1, root.section("resources").integer("slots_per_trial", 1))
    _check_batch_size(values, slots, problems)
    check_deepspeed_config(values, context, problems)

    searcher = root.section("searcher")
    check_single(
        searcher,
        as_integer(root.get("batches_per_step")) or 100,
        hparams.accumulation_steps(values) or 1,
        in_search=assignment is not None,
    )
    lengths = Lengths(values, context)
    target = (
        searcher if assignment is None or assignment.length is None else assigned_length(assignment.length, problems)
    )
    max_length = lengths.read(target, "max_length", bare=True)
    if (
        not (target.has("max_length") or searcher.has("max_steps"))
        and entry is not None
        and entry.kind == "class"
        and not test_mode
        and needs_length
    ):
        problems.report("searcher.max_length: is missing: write for how long to train, e.g. max_length: {epochs: 10}")
    optimizations = Optimizations(root.section("optimizations"), entry)
    fit = FitDefaults(
        max_length=max_length,
        validation_period=lengths.read(root, "min_validation_period"),
        checkpoint_period=lengths.read(root, "min_checkpoint_period"),
        reporting_period=_reporting_period(root),
        checkpoint_policy=root.choice("checkpoint_policy", "best", _POLICIES)
        if root.has("checkpoint_policy")
        else None,
        step_zero_validation=_optional_boolean(root, "perform_initial_validation"),
        test_mode=test_mode,
        stop_on_nan=stop_on_nan,
        early_stopping=root.optional_integer("early_stopping", minimum=1),
        log_grad_norm=root.boolean("log_grad_norm", False),
        profiled_batches=_profiled_batches(root.section("profiling")),
    )
    if fit.early_stopping is not None and searcher.text("metric") is None:
        problems.report("early_stopping: needs searcher.metric, the validation metric that it compares")
    plan = RunPlan(
        name=root.text("name") or _name_from(entry),
        context=context,
        entrypoint=entry or entrypoint.Entrypoint("module", ""),
        document=masked(with_defaults(document)),
        hparams=values,
        fit=fit,
        slots=slots,
        seed=root.section("reproducibility").optional_integer("experiment_seed", 0, MAX_SEED)
        if assignment is None
        else assignment.seed,
        searcher_metric=searcher.text("metric"),
        smaller_is_better=searcher.boolean("smaller_is_better", True),
        storage=read_storage(section_of(root), context),
        aggregation_frequency=optimizations.aggregation_frequency,
        average_aggregated_gradients=optimizations.average_aggregated_gradients,
        max_restarts=root.integer("max_restarts", 0),
        environment=read_environment(root.section("environment"), accelerator),
        secrets=secrets_of(document),
        debug=root.boolean("debug", False),
        precision=precision,
        log_with=read_trackers(root),
        notices=[] if assignment is not None else list(unsupported_fields.notices(document)),
        assignment=assignment,
    )
    _mapping(root, "data")
    problems.raise_any(source)
    dropped = [("entrypoint", f"not used: {words}") for words in plan.entrypoint.dropped]
    return dataclasses.replace(plan, notices=dropped + optimizations.notices + plan.notices)


def _entrypoint(root: Section, context: Path) -> entrypoint.Entrypoint | None:
    value = root.get("entrypoint")
    if value is None:
        root.problems.report(f"entrypoint: is missing: {entrypoint.FORMS}")
        return None
    try:
        entry = entrypoint.parse(value)
    except ValueError as error:
        root.reject("entrypoint", str(error))
        return None
    if entry.kind == "script" and not (context / entry.target).is_file():
        root.problems.report(
            f"entrypoint: there is no file {entry.target!r} in {context}; "
            f"if it is elsewhere, name its folder: ds-train CONFIG.yaml DIR"
        )
    return entry


def _name_from(entry: entrypoint.Entrypoint | None) -> str:
    return re.split(r"[/:]", entry.target)[-1].removesuffix(".py") if entry else ""


def _mapping(root: Section, name: str) -> Mapping[str, Any]:
    value = root.get(name)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        root.reject(name, "write a mapping (key: value lines below it)")
        return {}
    return value


def _optional_boolean(section: Section, name: str) -> bool | None:
    return section.boolean(name, False) if section.has(name) else None


def _reporting_period(root: Section) -> Length | None:
    unit = root.optional_integer("scheduling_unit", minimum=1)
    return None if unit is None else Length(unit, "batches")


def _profiled_batches(profiling: Section) -> tuple[int, int] | None:
    """Return the indices of the first and the last batch to profile; None where profiling is off."""
    begin = profiling.integer("begin_on_batch", 0)
    end = profiling.optional_integer("end_after_batch", minimum=begin)
    if not profiling.boolean("enabled", False):
        return None
    return begin, begin + _PROFILED_BATCHES - 1 if end is None else end


def _check_batch_size(values: Mapping[str, Any], slots: int, problems: Problems) -> None:
    size = values.get("global_batch_size")
    if size is not None and (type(size) is not int or size < slots):
        problems.add(
            "hyperparameters.global_batch_size", size, f"write a whole number of at least slots_per_trial ({slots})"
        )


__all__ = ["ConfigError", "RunPlan", "make_plan"]
