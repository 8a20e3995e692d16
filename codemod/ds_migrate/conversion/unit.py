"""The conversion of groups of trials, each all of it or none, but for trials that are apart from those that stay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from ds_migrate import ds_config
from ds_migrate.conversion.attempt import Conversion
from ds_migrate.conversion.results import result_of
from ds_migrate.conversion.values import ConversionUnit, UnitResult


def convert(units: Sequence[ConversionUnit]) -> list[UnitResult]:
    """Convert units with trials in one folder: they choose the names of their DeepSpeed configs together."""
    conversions = [Conversion(unit) for unit in units]
    for conversion in conversions:
        conversion.attempt(conversion.model)
    conversions = [_beside_others(conversion) for conversion in conversions]
    trials = [(c, trial) for c in conversions for trial in c.unit.trials if trial.key in c.static or not c.static]
    paths = ds_config.choose_paths((*trial.key, c.static.get(trial.key, {})) for c, trial in trials)
    results = []
    for conversion in conversions:
        conversion.attempt(partial(conversion.apply_rules, paths))
        results.append(_result(conversion, paths))
    return results


def _beside_others(whole: Conversion) -> Conversion:
    """Return the conversion beside the trials of its files that cannot be converted, where there are any."""
    apart = whole.without(whole.unit.others) if whole.unit.others else None
    if apart is None:
        return whole
    apart.attempt(apart.model)
    return whole if apart.problems else apart


def _result(first: Conversion, paths: Mapping[tuple[Path, str], Path]) -> UnitResult:
    """Return the result of a conversion; where trials are blocked, that of the others if they can be converted alone.
    Parsed files are large: those of one folder at a time are held."""
    conversion: Conversion | None = first
    last = first
    while conversion is not None and conversion.blocked:
        last = conversion
        conversion = last.without(last.blocked_trials())
        if conversion is not None:
            conversion.attempt(conversion.model)
            conversion.attempt(partial(conversion.apply_rules, paths))
    apart = last.with_plain_base() if conversion is None else None
    if apart is not None:
        apart.attempt(apart.model)
        apart.attempt(partial(apart.apply_rules, paths))
        conversion = None if apart.blocked else apart
    chosen = conversion or first.whole or first
    if conversion is None:
        chosen.shared = last.shared
    result = result_of(chosen, paths)
    for used in (first, last, chosen, apart):
        if used is not None:
            used.close()
    return result


def failed(unit: ConversionUnit, error: Exception) -> UnitResult:
    """Return the result of a unit that could not be converted because of an error of the tool itself."""
    conversion = Conversion(unit)
    conversion.fail(error)
    return result_of(conversion, {})
