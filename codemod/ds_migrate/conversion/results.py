"""The result of a conversion, as values: the files as a report shows them, and the trials as configs see them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from ds_migrate.conversion.attempt import Conversion
from ds_migrate.conversion.preconditions import blocked_by
from ds_migrate.conversion.values import UnitResult
from ds_migrate.experiment import TrialFacts
from ds_migrate.findings import FileResult, FileStatus, Finding, Severity, TrialResult, TrialStatus
from ds_migrate.project.trial_class import TrialClass
from ds_migrate.rules.codes import Code
from ds_migrate.trial.hyperparameters import unpacked_hyperparameters


def result_of(conversion: Conversion, paths: Mapping[tuple[Path, str], Path]) -> UnitResult:
    """Return the files as a report shows them, and the trials as experiment configs see them."""
    name = (conversion.whole or conversion).unit.name
    return UnitResult(name, tuple(_file_results(conversion, name)), tuple(_trial_facts(conversion, paths)))


def _file_results(conversion: Conversion, unit: str) -> Iterator[FileResult]:
    by_path = conversion.located_findings()
    status = TrialStatus.BLOCKED if conversion.blocked else TrialStatus.CONVERTED
    own_problem = {f.trial for found in by_path.values() for f in found if f.severity is Severity.BLOCKED}
    for path in sorted(conversion.unit.sources):
        trials = [t for t in conversion.unit.trials if t.path == path]
        found = sorted(by_path.get(path, []), key=lambda f: (f.line, f.column, f.code))
        extra = [f for p, f in conversion.problems if p == path]
        if path not in conversion.unit.writable and not extra:
            continue
        file = FileResult(path, units=frozenset({unit}))
        file.trials = [TrialResult(t.facts.name, t.facts.line, status) for t in trials]
        file.trials += [TrialResult(t.facts.name, t.facts.line, TrialStatus.BLOCKED) for t in conversion.stayed(path)]
        if not conversion.blocked:
            apart = [_stays_beside(trial, conversion) for trial in conversion.staying if trial.path == path]
            file.findings = sorted(
                [*found, *conversion.reasons.get(path, ()), *apart], key=lambda f: (f.line, f.column)
            )
            file.after = conversion.outputs.get(path)
            file.status = FileStatus.CHANGED if file.after is not None else FileStatus.UNCHANGED
        else:
            file.findings = [*extra, *(f for f in found if f.severity is Severity.BLOCKED)]
            is_error = any(f.severity is Severity.ERROR for f in extra)
            file.status = FileStatus.ERROR if is_error else FileStatus.BLOCKED
            if own_problem and not conversion.problems:
                along = [t for t in trials if t.facts.name not in own_problem]
                file.findings += [moves_with(t, own_problem, conversion.shared) for t in along]
        yield file


def _trial_facts(conversion: Conversion, paths: Mapping[tuple[Path, str], Path]) -> Iterator[TrialFacts]:
    status = TrialStatus.BLOCKED if conversion.blocked else TrialStatus.CONVERTED
    plans = {ctx.trial.facts.key: ctx.plan for ctx in conversion.contexts}
    by_file = conversion.aggregations_by_file()
    given = conversion.scripts_aggregations()
    accumulates = next(iter(given)) if len(given) == 1 else None
    for trial in (*conversion.unit.trials, *conversion.stayed()):
        plan = plans.get(trial.key)
        yield TrialFacts(
            trial.facts.name,
            trial.path,
            status if trial in conversion.unit.trials else TrialStatus.BLOCKED,
            conversion.static.get(trial.key, {}),
            paths.get(trial.key, trial.path.with_name("ds_config.json")),
            aggregation=accumulates if isinstance(accumulates, int) and accumulates > 1 else None,
            aggregations=by_file,
            sums_gradients=plan is not None and not plan.accumulation.averages,
            unpacks_hparams=plan is not None and bool(unpacked_hyperparameters(plan.trial)),
        )


def moves_with(trial: TrialClass, blocked: set[str | None], shared: str) -> Finding:
    names = ", ".join(sorted(n for n in blocked if n))
    message = f"{trial.facts.name} shares {shared or 'code'} with {names}, which is blocked"
    way = f", or give it a separate {shared}" if shared.isidentifier() else ""
    return blocked_by(trial, Code.MOVES_WITH_BLOCKED, message, f"fix {names} first{way}")


def _stays_beside(trial: TrialClass, conversion: Conversion) -> Finding:
    """Return what is to be known of a trial that stays in a file from which others are converted."""
    names = ", ".join(sorted({other.facts.name for other in conversion.unit.trials}))
    message = f"{trial.facts.name} stays as it is, with the imports that it needs; it shares no code that changes with "
    message += names
    if conversion.plain_base:
        message += f" but {conversion.plain_base}, which is a plain class now: trials name PyTorchTrial beside it"
    name, line = trial.facts.name, trial.facts.line
    return Finding(Code.MOVES_WITH_BLOCKED, Severity.REVIEW, line, message, trial=name)
