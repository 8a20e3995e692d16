"""The ``searcher`` of an experiment config that runs several trials."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, cast

from trial_runtime.search.brackets import MODES
from trial_runtime.search.config import REFUSED, SEARCHES, Generation, Search
from trial_runtime.search.space import grid_size, is_group
from trial_runtime.train.config.errors import Problems, Section, as_integer, did_you_mean
from trial_runtime.train.config.hparams import wrong_field

_UNITS = ("batches", "epochs", "records")
_ASHA = ("adaptive_asha", "async_halving")
_GRID_LIMIT = 1_000_000
SINGLE = "single"


def is_search(searcher: Mapping[str, Any]) -> bool:
    """Return whether the searcher runs several trials."""
    return searcher.get("name") in (*SEARCHES, *REFUSED)


def check_single(searcher: Section, batches_per_step: int, accumulation: int, in_search: bool) -> None:
    """Report what one run cannot have: another searcher than ``single``, and fields that Determined removed.

    Args:
        searcher: the section.
        batches_per_step: of configs before 0.12.
        accumulation: batches of an optimizer step.
        in_search: the run is a trial of a search, which has another name.
    """
    name = None if in_search else searcher.get("name")
    if name not in (None, SINGLE, *SEARCHES, *REFUSED):
        searcher.reject("name", f"write {SINGLE}{did_you_mean(str(name), [SINGLE, *SEARCHES, *REFUSED])}")
    elif name not in (None, SINGLE):
        length = "" if searcher.has("max_length") else " --config searcher.max_length.batches=N"
        searcher.problems.report(
            f"searcher.name: {name!r} runs many trials, ds-train runs one: start it once for each trial, with "
            f"--config searcher.name=single{length} and --hparam NAME=VALUE for each search space"
        )
    if searcher.has("max_steps"):
        steps = as_integer(searcher.get("max_steps"))
        batches = "N" if steps is None else str(max(1, batches_per_step * steps // accumulation))
        searcher.reject("max_steps", f"Determined removed it; write max_length: {{batches: {batches}}}")
    if searcher.has("source_checkpoint_uuid"):
        searcher.reject(
            "source_checkpoint_uuid",
            "checkpoints of a cluster are not reachable; remove it and use --latest-checkpoint PATH",
        )


def read_search(
    document: Mapping[str, Any], problems: Problems, asha: Literal["promotion", "stop_once"] | None = None
) -> Search | None:
    """Read the search of an experiment config.

    Args:
        document: the experiment config.
        problems: receives what is wrong.
        asha: the generation of ASHA to take, instead of what the config has.

    Returns:
        The search; None where it cannot be read.
    """
    section = Section(document, "", problems).section("searcher")
    name = str(section.get("name"))
    if name in REFUSED:
        problems.report(f"searcher.name: {name!r} is not run here: {REFUSED[name]}")
        return None
    if section.text("metric") is None:
        problems.report("searcher.metric: is missing: name the validation metric that decides, e.g. validation_loss")
    hyperparameters = document.get("hyperparameters") or {}
    trials = _max_trials(name, section, hyperparameters, problems)
    generation = _generation(section, asha) if name in _ASHA else None
    length, unit = _length(section, generation, needed=name not in ("random", "grid"))
    mode = section.choice("mode", "standard", MODES)
    rungs = section.get("bracket_rungs") or []
    if not isinstance(rungs, list) or not all((as_integer(each) or 0) >= 1 for each in rungs):
        section.reject("bracket_rungs", "write a list of whole numbers of at least 1")
        rungs = []
    divisor = section.get("divisor") or 4
    if isinstance(divisor, bool) or not isinstance(divisor, int | float) or divisor <= 1:
        section.reject("divisor", "write a number above 1")
        divisor = 4
    return Search(
        name=name,
        length=length,
        unit=unit,
        max_trials=trials,
        max_concurrent_trials=section.integer("max_concurrent_trials", 16),
        divisor=divisor,
        mode=mode,
        max_rungs=section.integer("max_rungs", 5, minimum=1),
        num_rungs=section.integer("num_rungs", 5, minimum=1),
        bracket_rungs=tuple(int(each) for each in rungs),
        budget=_budget(name, section, length, unit),
        generation=generation,
        smaller_is_better=section.boolean("smaller_is_better", True),
    )


def _max_trials(name: str, section: Section, hyperparameters: Any, problems: Problems) -> int:
    if name != "grid":
        if name in ("adaptive", "sync_halving"):
            return section.integer("max_trials", 1, minimum=1)
        if not section.has("max_trials"):
            problems.report("searcher.max_trials: is missing: write how many trials to run")
        return section.integer("max_trials", 1, minimum=1)
    if not isinstance(hyperparameters, Mapping) or not _check_counts(hyperparameters, "", problems):
        return 1
    size = grid_size(hyperparameters)
    if not hyperparameters:
        problems.report("hyperparameters: is empty: a grid needs at least one")
    elif size > _GRID_LIMIT:
        problems.report(f"hyperparameters: the grid has {size:,} points, more than {_GRID_LIMIT:,}: lower a count")
    return min(max(size, 1), _GRID_LIMIT)


def _check_counts(tree: Mapping[str, Any], prefix: str, problems: Problems) -> bool:
    sound = True
    for name, value in tree.items():
        if not isinstance(value, Mapping) or wrong_field(value) is not None:
            sound = sound and not isinstance(value, Mapping)
        elif is_group(value):
            sound = _check_counts(value, f"{prefix}{name}.", problems) and sound
        elif value["type"] in ("int", "double", "log") and (as_integer(value.get("count")) or 0) < 1:
            problems.report(
                f"hyperparameters.{prefix}{name}.count: {value.get('count')!r}: a grid search needs the number of "
                "points of each int, double and log"
            )
            sound = False
    return sound


def _generation(section: Section, asha: Literal["promotion", "stop_once"] | None) -> Generation:
    if asha is not None:
        return asha
    if section.has("max_time") and section.has("time_metric"):
        return "time"
    return "stop_once" if section.boolean("stop_once", False) else "promotion"


def _length(section: Section, generation: Generation | None, needed: bool) -> tuple[int | None, str]:
    if generation == "time":
        return section.integer("max_time", 1, minimum=1), section.text("time_metric") or ""
    value = section.get("max_length")
    if value is None:
        if needed:
            section.problems.report(
                "searcher.max_length: is missing: write for how long to train a trial at most, e.g. {epochs: 10}; a "
                "search over a time metric needs both max_time and time_metric"
            )
        return None, "batches"
    value = {"batches": value} if as_integer(value) is not None else value
    if isinstance(value, Mapping) and len(value) == 1:
        unit, count = next(iter(value.items()))
        number = as_integer(count)
        if unit in _UNITS and number is not None and number >= 1:
            return number, cast(str, unit)
    section.reject("max_length", f"write one of {', '.join(f'{{{unit}: N}}' for unit in _UNITS)} and N batches")
    return 1, "batches"


def _budget(name: str, section: Section, length: int | None, unit: str) -> int:
    if name not in ("adaptive", "sync_halving"):
        return 0
    value = section.get("budget")
    number = as_integer(value.get(unit)) if isinstance(value, Mapping) else as_integer(value)
    if number is None or number <= (length or 0):
        section.reject("budget", f"write {{{unit}: N}}, more than max_length, as all trials together")
        return (length or 1) + 1
    return number
