"""Reasons not to convert a group of trials, apart from what its code does: files, sizes, names, configs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ds_migrate.conversion.values import ConversionUnit
from ds_migrate.experiment import ConfigFacts
from ds_migrate.files import limits
from ds_migrate.findings import Finding, Severity
from ds_migrate.project.trial_class import TrialClass
from ds_migrate.rules.codes import Code
from ds_migrate.trial.model import Trial

Problem = tuple[Path, Finding]
"""The file that shows it, and the finding."""


def problems_before(unit: ConversionUnit) -> Iterator[Problem]:
    """Yield files that may not be written, are too large or needed unchanged, and names that mean several classes."""
    missing = sorted(unit.sources.keys() - unit.writable)
    large = sorted(path for path, data in unit.sources.items() if len(data) > limits.LARGEST_MODULE)
    for trial in unit.trials:
        if trial.path not in unit.writable:
            continue
        name = trial.facts.name
        for path in large:
            size, largest = map(limits.shown, (len(unit.sources[path]), limits.LARGEST_MODULE))
            message = f"{path.name} has {size}, and modules of up to {largest} are converted"
            yield _problem(
                trial, Code.TOO_LARGE, message, "move what is no part of the trial, such as tables, to another one"
            )
        count = len(unit.trials)
        if not large and (count > limits.MOST_TRIALS or unit.size * count > limits.MOST_WORK):
            size = limits.shown(unit.size)
            message = f"{count} trials share {size} of modules, which is too much to convert together"
            yield _problem(trial, Code.TOO_LARGE, message, "give the trials separate modules")
        if trial.again:
            message = (
                f"line {trial.again} gives the name {name} to another class: which one is meant cannot be determined"
            )
            yield _problem(
                trial, Code.MOVES_WITH_BLOCKED, message, "give each class a separate name, or keep one of them"
            )
        facts = unit.config_facts.get(trial.key)
        for path, reason, advice in facts.unreadable if facts is not None else ():
            message = f"{path.name}, which configures {name}, cannot be read ({reason})"
            yield _problem(trial, Code.CONFIG_UNREADABLE, message, advice)
        for path in missing:
            message = f"{name} also requires {path.name}, which is not among the given paths"
            yield _problem(trial, Code.FILE_NOT_NAMED, message, f"name {path} too, or the folder that holds both")
        for other in unit.others:
            message = f"{name} shares files with {other.facts.name}, which stays as it is"
            yield _problem(
                trial,
                Code.MOVES_WITH_BLOCKED,
                message,
                "convert the other trial first, part the two, or skip both (# ds-migrate: skip)",
            )


def problems_of_configs(unit: ConversionUnit, trial: Trial, config: ConfigFacts | None) -> Iterator[Problem]:
    """Yield configs whose accumulation must move along with the source and that may not be written, and configs
    that need two different sources."""
    if config is None or config.aggregation <= {1}:
        return
    if len(config.averages) > 1:
        message = f"the configs of {trial.name} disagree on average_aggregated_gradients, which its source sets"
        yield _problem(
            trial.facts,
            Code.AVERAGE_AGGREGATED_GRADIENTS,
            message,
            "use one value in all configs that accumulate",
        )
    for path in config.configs:
        if path not in unit.writable:
            message = (
                f"{trial.name} also requires {path.name}, "
                "which sets aggregation_frequency and is not among the given paths"
            )
            yield _problem(trial.facts, Code.FILE_NOT_NAMED, message, f"name {path} too, or the folder that holds both")


def _problem(trial: TrialClass, code: str, message: str, help: str) -> Problem:  # noqa: A002
    return trial.path, blocked_by(trial, code, message, help)


def blocked_by(trial: TrialClass, code: str, message: str, help: str) -> Finding:  # noqa: A002
    """Return the finding that blocks a trial."""
    return Finding(code, Severity.BLOCKED, trial.facts.line, message, trial=trial.facts.name, help=help)
