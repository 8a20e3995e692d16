"""Select the trial to compare, its experiment config and its hyperparameters."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ds_migrate.files.discovery import discover
from ds_migrate.options import Options
from ds_migrate.pipeline import migrate
from trial_runtime._cluster_info import ClusterInfo
from trial_runtime._storage.urls import CheckpointStorage
from trial_runtime.search.space import is_space
from trial_runtime.train.config.document import assign, load
from trial_runtime.train.config.errors import ConfigError
from trial_runtime.train.config.run_plan import RunPlan, make_plan
from trial_runtime.train.run.run_directory import RunDirectory, describe

_SUFFIXES = (".yaml", ".yml")


@dataclasses.dataclass(frozen=True)
class TrialSelection:
    """The trial that both sides run.

    Attributes:
        config: the experiment config, relative to the context directory; None: there is none.
        document: the config's content, or what replaces it.
        picks: values of hyperparameters, by dotted name.
        picked: those of them that the user did not name: the first value of a search space.
        trial: the trial, or the script that trains it.
        slots: how many processes the config asks for.
        others: trials, and scripts, that other configs train.
    """

    config: Path | None
    document: dict[str, Any]
    picks: dict[str, Any]
    picked: dict[str, Any]
    trial: str
    slots: int = 1
    others: tuple[str, ...] = ()


def select_trial(
    context: Path,
    config: Path | None = None,
    trial: str | None = None,
    picks: Mapping[str, Any] | None = None,
    options: Options | None = None,
) -> TrialSelection:
    """Select from the experiment configs below `context`: one that needs no search value first.

    Args:
        context: the original's folder.
        config: the one that the user names, relative to `context`.
        trial: the class that the config has to name.
        picks: the user's hyperparameters.
        options: of the conversion, which decide what a trial is where no config names one.

    Raises:
        ConfigError: no config names the trial, several trials are there and none was named, or a config that names
            it has no such hyperparameter.
    """
    picks = dict(picks or {})
    found: list[TrialSelection] = []
    problems: list[str] = []
    for path in _configs(context):
        try:
            document = load(context / path)
            if "entrypoint" in document:
                found.append(_selected(context, path, document, {}))
        except ConfigError as error:
            problems.append(str(error))
    if config is not None:
        return _with_others(_selected(context, config, load(context / config), picks), found)
    named = [selection for selection in found if trial is None or selection.trial.partition(":")[2] == trial]
    if not named:
        return _without_config(context, trial, picks, problems, options or Options())
    trials = sorted({selection.trial for selection in named})
    if len(trials) > 1:
        raise ConfigError(
            f"{context.name}: there are several trials ({', '.join(trials)}): name one with --trial or --config"
        )
    chosen = min(_picked(context, named, picks), key=lambda selection: (len(selection.picked), str(selection.config)))
    return _with_others(chosen, found)


def _picked(context: Path, selections: Sequence[TrialSelection], picks: dict[str, Any]) -> list[TrialSelection]:
    """Return the selections with the user's hyperparameters, of the configs that have these.

    Raises:
        ConfigError: no config has them, as the first one reports it.
    """
    found: list[TrialSelection] = []
    problem: ConfigError | None = None
    for selection in selections:
        assert selection.config is not None
        try:
            found.append(_selected(context, selection.config, selection.document, picks))
        except ConfigError as error:
            problem = problem or error
    if problem is not None and not found:
        raise problem
    return found


def _with_others(chosen: TrialSelection, found: Sequence[TrialSelection]) -> TrialSelection:
    others = {selection.trial for selection in found} - {chosen.trial}
    return dataclasses.replace(chosen, others=tuple(sorted(others)))


def plan_of(selection: TrialSelection, context: Path, ranks: int, changes: Mapping[str, Any] | None = None) -> RunPlan:
    """Return the plan of one side's run.

    Args:
        selection: of the original; the side's own version of the config is read.
        context: the side's folder.
        ranks: number of processes.
        changes: fields of the config to set, by dotted name.

    Raises:
        ConfigError: it cannot be run.
    """
    path = None if selection.config is None else context / selection.config
    document = load(path) if path is not None and path.is_file() else copy.deepcopy(selection.document)
    _settle(document, ranks)
    for name, value in (changes or {}).items():
        assign(document, name, value)
    plan = make_plan(document, str(selection.config or selection.trial), context, picks=selection.picks)
    fit = dataclasses.replace(plan.fit, profiled_batches=None)
    return dataclasses.replace(plan, slots=ranks, storage=CheckpointStorage(), fit=fit, log_with=())


def info_of(plan: RunPlan, directory: Path, seed: int) -> ClusterInfo:
    """Return the plan's run, in `directory`, as ``get_cluster_info()`` returns it to the ranks."""
    directory.mkdir(parents=True, exist_ok=True)
    return describe(plan, RunDirectory(directory, directory.name, 1, seed), None)


def _settle(document: dict[str, Any], ranks: int) -> None:
    """Make one run of the searcher's many, on so many ranks."""
    searcher = document.get("searcher")
    searcher = searcher if isinstance(searcher, dict) else {}
    searcher["name"] = "single"
    if not _is_length(searcher.get("max_length")):  # else the trial may compute with it; the recorder ends the run
        searcher["max_length"] = {"batches": 1}
    searcher.pop("source_checkpoint_uuid", None)
    searcher.pop("max_steps", None)
    document["searcher"] = searcher
    resources = document.get("resources")
    document["resources"] = {**(resources if isinstance(resources, dict) else {}), "slots_per_trial": ranks}
    document.pop("checkpoint_storage", None)


def _is_length(value: Any) -> bool:
    """Return whether a run can be planned with this ``max_length``."""
    if not isinstance(value, dict) or len(value) != 1:
        return False
    ((unit, count),) = value.items()
    return unit in ("batches", "epochs") and type(count) is int and count > 0


def _configs(context: Path) -> Iterator[Path]:
    for path in sorted(context.rglob("*")):
        if path.suffix in _SUFFIXES and path.is_file():
            yield path.relative_to(context)


def _selected(context: Path, path: Path, document: dict[str, Any], picks: dict[str, Any]) -> TrialSelection:
    settled = copy.deepcopy(document)
    _settle(settled, 1)
    tree = settled.get("hyperparameters")
    picked = {name: value for name, value in _first_values(tree if isinstance(tree, dict) else {}) if name not in picks}
    plan = make_plan(settled, str(path), context, picks={**picks, **picked})
    slots = (document.get("resources") or {}).get("slots_per_trial") or 1
    return TrialSelection(path, document, {**picks, **picked}, picked, plan.entrypoint.target, slots)


def _first_values(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield one value of each search space: its first, or its smallest."""
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if not isinstance(value, Mapping):
            continue
        if not is_space(value):
            yield from _first_values(value, name + ".")
        elif value["type"] == "categorical" and len(value.get("vals") or []) > 1:
            yield name, value["vals"][0]
        elif value["type"] == "log":
            yield name, float(value.get("base", 10)) ** float(value["minval"])
        elif value["type"] in ("int", "double"):
            yield name, value["minval"]


def _without_config(
    context: Path, trial: str | None, picks: dict[str, Any], problems: list[str], options: Options
) -> TrialSelection:
    """Choose a trial that no experiment config names: its class alone, with the user's hyperparameters."""
    report = migrate(discover([context]), options)
    names = {found.name: file.path for file, found in report.trials() if trial in (None, found.name)}
    if len(names) != 1:
        known = ", ".join(sorted(names)) or "none"
        reason = "".join(f"\n    {problem}" for problem in problems[:5])
        raise ConfigError(
            f"no experiment config names {trial or 'one trial'} (trials there: {known}); "
            f"use --config or --trial{reason}"
        )
    ((name, path),) = names.items()
    module = ".".join(path.resolve().relative_to(context.resolve()).with_suffix("").parts)
    document = {"name": name, "entrypoint": f"{module}:{name}", "hyperparameters": dict(picks)}
    return TrialSelection(None, document, {}, {}, f"{module}:{name}")
