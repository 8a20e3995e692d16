"""The conversion of one group of trials: model them, decide, apply the rules, render, check. All of it or none."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import libcst as cst

from ds_migrate import ds_config
from ds_migrate.conversion.output_check import check
from ds_migrate.conversion.preconditions import blocked_by, problems_before, problems_of_configs
from ds_migrate.conversion.rule_context import Findings, RuleContext
from ds_migrate.conversion.values import ConversionUnit, UnitResult
from ds_migrate.decisions import decide, reconcile
from ds_migrate.decisions.engine_plan import Accumulation, Blocked, EnginePlan
from ds_migrate.decisions.static_config import static_config
from ds_migrate.experiment import ConfigFacts, TrialFacts
from ds_migrate.findings import FileResult, FileStatus, Finding, Severity, TrialResult, TrialStatus
from ds_migrate.project.library_bases import LIBRARY_BASE
from ds_migrate.project.trials import TrialClass
from ds_migrate.rules.codes import Code
from ds_migrate.rules.dsm330_launch import aggregations_of
from ds_migrate.rules.registry import conversion_rules
from ds_migrate.syntax.import_order import sort_like
from ds_migrate.syntax.line_folding import fold_new
from ds_migrate.syntax.source import SourceError, SourceFile
from ds_migrate.targets import target_named
from ds_migrate.trial.builder import build_trial, class_node
from ds_migrate.trial.context import ContextNames, link
from ds_migrate.trial.hyperparameters import unpacked_hyperparameters
from ds_migrate.trial.model import Trial

_SHOWN = 300  # characters of an unexpected error: one that holds a syntax node prints all below it


def convert(units: Sequence[ConversionUnit]) -> list[UnitResult]:
    """Convert units with trials in one folder: they choose the names of their DeepSpeed configs together."""
    conversions = [_Conversion(unit) for unit in units]
    for conversion in conversions:
        conversion.attempt(conversion.model)
    trials = [(c, trial) for c in conversions for trial in c.unit.trials if trial.key in c.static or not c.static]
    paths = ds_config.choose_paths((*trial.key, c.static.get(trial.key, {})) for c, trial in trials)
    results = []
    for conversion in conversions:
        conversion.attempt(partial(conversion.apply_rules, paths))
        results.append(conversion.result(paths))
        conversion.close()  # parsed files are large: those of one folder at a time are held
    return results


def failed(unit: ConversionUnit, error: Exception) -> UnitResult:
    """Return the result of a unit that could not be converted because of an error of the tool itself."""
    conversion = _Conversion(unit)
    conversion.fail(error)
    return conversion.result({})


@dataclass
class _Conversion:
    """A conversion at work. ``problems`` keep the whole unit from being converted."""

    unit: ConversionUnit
    problems: list[tuple[Path, Finding]] = field(default_factory=list)
    files: dict[Path, SourceFile] = field(default_factory=dict)
    contexts: list[RuleContext] = field(default_factory=list)
    refused: dict[tuple[Path, str], Blocked] = field(default_factory=dict)  # trials without engines
    static: dict[tuple[Path, str], dict[str, object]] = field(default_factory=dict)  # DeepSpeed configs, by trial
    findings: Findings = field(default_factory=Findings)
    outputs: dict[Path, bytes] = field(default_factory=dict)

    @property
    def blocked(self) -> bool:
        return bool(self.problems) or self.findings.blocked

    def attempt(self, step: Callable[[], None]) -> None:
        """Take a step of the conversion. An error in it concerns this unit and no other."""
        try:
            step()
        except Exception as error:
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """Record an error of the tool itself."""
        trace = traceback.extract_tb(error.__traceback__)
        where = f" ({Path(trace[-1].filename).name}:{trace[-1].lineno})" if trace else ""
        shown = " ".join(str(error).split())
        shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
        message = f"ds-migrate failed: {type(error).__name__}: {shown}{where}"
        finding = Finding(Code.FAILED_CHECK, Severity.ERROR, 1, message, help="please report this file")
        self.problems += [(path, finding) for path in sorted({trial.path for trial in self.unit.trials})]

    # -- model -----------------------------------------------------------------------------------------------------

    def model(self) -> None:
        """Parse the files, model the trials and decide on them; nothing is changed."""
        self.problems += problems_before(self.unit)
        for path, data in sorted({**self.unit.sources, **self.unit.library}.items()):
            try:
                self.files[path] = SourceFile(path, data, self.unit.accepted.get(path, frozenset()))
            except SourceError as error:
                self.problems.append((path, Finding(error.code, Severity.ERROR, error.line, str(error), error.column)))
        if self.problems:
            return
        classes: dict[Path, list[cst.ClassDef]] = {path: [] for path in self.files}
        for member in self.unit.trials:
            own = class_node(self.files[member.path], member.facts.name, member.facts.line)
            bases = [(path, class_node(self.files[path], name)) for path, name in member.bases]
            for path, node in ((member.path, own), *bases):
                if node is not None and node not in classes[path]:
                    classes[path].append(node)
        context_names = {file: ContextNames(file, classes[path]) for path, file in self.files.items()}
        link(context_names.values())
        parents = {parent for member in self.unit.trials for parent in member.bases}
        target = target_named(self.unit.options.target)
        plans: list[EnginePlan] = []
        for member in sorted(self.unit.trials, key=lambda t: -len(t.bases)):  # the most derived ones know most
            trial = build_trial(member, self.files, context_names)
            if member.key in parents and (trial.is_abstract or not (trial.wraps_model and trial.wraps_optimizer)):
                continue  # a base class that is no trial by itself
            config = self.unit.config_facts.get(member.key)
            if member.key in parents and (below := _made_below(member, plans)):
                self._no_engine_of_its_own(trial, below.trial, config)
                continue
            self.problems += problems_of_configs(self.unit, trial, config)
            decision = decide(trial, self.unit.options, target, self._accumulation(config))
            if isinstance(decision, EnginePlan):
                plans.append(decision)
            else:
                self.refused[member.key] = decision
        plans, differing = reconcile(plans, self.unit.options, target)
        for blocked in (*self.refused.values(), *differing):
            self.findings.report(
                Severity.BLOCKED, Code.ENGINE, blocked.trial, blocked.file, blocked.node, blocked.message, blocked.help
            )
        imports: dict[SourceFile, dict[str, str]] = {}
        written: dict[tuple[SourceFile, str], str] = {}
        self.contexts = [
            RuleContext(
                plan, self.unit.options, target, self.findings,
                configured=self.unit.config_facts.get(plan.trial.facts.key), deepspeed_imports=imports,
                context_names=context_names, written=written, upgraded=self.unit.upgraded,
            )
            for plan in plans
        ]  # fmt: skip
        self.static = {key: static_config(blocked, target) for key, blocked in self.refused.items()}
        self.static |= {plan.trial.facts.key: static_config(plan, target) for plan in plans}

    def _accumulation(self, config: ConfigFacts | None) -> Accumulation:
        frequencies = {*(config.aggregation if config is not None else ()), *self._scripts_aggregations()}
        return Accumulation(not frequencies <= {1}, config is None or config.averages != frozenset({False}))

    def _no_engine_of_its_own(self, base: Trial, derived: Trial, config: ConfigFacts | None) -> None:
        """Report a trial whose engines a class built on it makes: blocked where it is trained itself."""
        own = base.parts[0]
        steps = any(step.use.function not in {s.use.function for s in derived.steps} for step in base.steps)
        trained = config is not None and bool(config.configs)
        if steps or trained:
            how = "a config names it" if trained else f"it steps in methods that {derived.name} replaces"
            self.findings.report(
                Severity.BLOCKED, Code.ENGINE, derived, own.file, own.node.name,
                f"{base.name} would have no engine: {derived.name}, built on it, makes them in its own __init__, "
                f"and {how}",
                f"wrap everything in one __init__, or do not build {derived.name} on {base.name}",
            )  # fmt: skip
        else:
            self.findings.report(
                Severity.REVIEW, Code.ENGINE, derived, own.file, own.node.name,
                f"{base.name} has no separate engine any more, {derived.name} makes it: it trains only as that",
            )  # fmt: skip

    def _aggregations_by_file(self) -> dict[Path, int | None]:
        found = {path: aggregations_of(file) for path, file in self.files.items()}
        return {path: k if isinstance(k, int) else None for path, given in found.items() for k in _only(given)}

    def _scripts_aggregations(self) -> set[int | float | None]:
        return {k for file in self.files.values() for k in aggregations_of(file)}

    # -- convert --------------------------------------------------------------------------------------------------

    def apply_rules(self, paths: Mapping[tuple[Path, str], Path]) -> None:
        """Apply every rule, then render and check. ``paths``: where each trial's DeepSpeed config is."""
        for ctx in self.contexts:
            key = ctx.trial.facts.key
            ctx.ds_config_name = paths[key].name if key in paths else "ds_config.json"
        if self.problems or self.refused or not self.contexts:
            return  # reported already; the rules need every trial's engines
        for rule in conversion_rules():
            if rule.apply is not None:
                for ctx in self.contexts:
                    rule.apply(ctx)
        for rule in conversion_rules():
            if rule.apply_file is not None:
                for file in self.files.values():
                    rule.apply_file(file, self.contexts)
        if self.blocked:
            return
        for path in self.unit.sources:
            file = self.files[path]
            before, after = file.data, file.render()
            problem = check(before, after)
            if problem is None and path.suffix != ".ipynb":  # a block of imports may span two cells
                after = fold_new(before, sort_like(before, after), file.module.default_indent)
            if problem is not None and problem.code is Code.CONTEXT_API:
                help_text = "call it on the context itself, where the context is in sight"
                self.problems.append(
                    (path, Finding(Code.CONTEXT_API, Severity.BLOCKED, problem.line, problem.message, help=help_text))
                )
            elif problem is not None:
                advice = "please report this file" if problem.code is Code.FAILED_CHECK else None
                error = Finding(problem.code, Severity.ERROR, problem.line, problem.message, help=advice)
                self.problems.append((path, error))
            elif after != before or path in self.unit.upgraded:
                self.outputs[path] = after

    def close(self) -> None:
        """Release the parsed files. Their trees refer to each other, so they would wait for the garbage collector."""
        for file in self.files.values():
            file.close()
        self.files.clear()
        self.contexts.clear()
        self.refused.clear()

    # -- result ----------------------------------------------------------------------------------------------------

    def result(self, paths: Mapping[tuple[Path, str], Path]) -> UnitResult:
        """Return the files as a report shows them, and the trials as experiment configs see them."""
        return UnitResult(self.unit.name, tuple(self._file_results()), tuple(self._trial_facts(paths)))

    def _file_results(self) -> Iterator[FileResult]:
        by_path = self._findings_in_the_project()
        status = TrialStatus.BLOCKED if self.blocked else TrialStatus.CONVERTED
        own_problem = {f.trial for found in by_path.values() for f in found if f.severity is Severity.BLOCKED}
        for path in sorted(self.unit.sources):
            trials = [t for t in self.unit.trials if t.path == path]
            found = sorted(by_path.get(path, []), key=lambda f: (f.line, f.column, f.code))
            extra = [f for p, f in self.problems if p == path]
            if path not in self.unit.writable and not extra:
                continue
            file = FileResult(path, units=frozenset({self.unit.name}))
            file.trials = [TrialResult(t.facts.name, t.facts.line, status) for t in trials]
            if not self.blocked:
                file.findings = found
                file.after = self.outputs.get(path)
                file.status = FileStatus.CHANGED if file.after is not None else FileStatus.UNCHANGED
            else:
                file.findings = [*extra, *(f for f in found if f.severity is Severity.BLOCKED)]
                is_error = any(f.severity is Severity.ERROR for f in extra)
                file.status = FileStatus.ERROR if is_error else FileStatus.BLOCKED
                if own_problem and not self.problems:
                    file.findings += [_moves_with(t, own_problem) for t in trials if t.facts.name not in own_problem]
            yield file

    def _findings_in_the_project(self) -> dict[Path, list[Finding]]:
        """Return the findings by file, those in a library's base class at the classes that are built on it."""
        found = {path: [*listed] for path, listed in self.findings.by_file.items() if path not in self.unit.library}
        for finding in (f for path in self.unit.library for f in self.findings.by_file.get(path, ())):
            for trial in self.unit.trials if finding.severity is not Severity.CONVERTED else ():
                if trial.facts.name == finding.trial:
                    here = replace(finding, line=trial.facts.line, column=0)
                    found.setdefault(trial.path, []).append(here)
        return found

    def _trial_facts(self, paths: Mapping[tuple[Path, str], Path]) -> Iterator[TrialFacts]:
        status = TrialStatus.BLOCKED if self.blocked else TrialStatus.CONVERTED
        plans = {ctx.trial.facts.key: ctx.plan for ctx in self.contexts}
        by_file = self._aggregations_by_file()
        given = self._scripts_aggregations()
        accumulates = next(iter(given)) if len(given) == 1 else None
        for trial in self.unit.trials:
            plan = plans.get(trial.key)
            yield TrialFacts(
                trial.facts.name,
                trial.path,
                status,
                self.static.get(trial.key, {}),
                paths.get(trial.key, trial.path.with_name("ds_config.json")),
                aggregation=accumulates if isinstance(accumulates, int) and accumulates > 1 else None,
                aggregations=by_file,
                sums_gradients=plan is not None and not plan.accumulation.averages,
                unpacks_hparams=plan is not None and bool(unpacked_hyperparameters(plan.trial)),
            )


def _made_below(base: TrialClass, plans: Sequence[EnginePlan]) -> EnginePlan | None:
    """Return the plan of a class built on ``base`` that makes its engines elsewhere: made in the base too, there would
    be two."""
    if LIBRARY_BASE in base.bases:
        return None  # the library's class makes them where the base class does not
    for plan in plans:
        if base.key in plan.trial.facts.bases:
            own = next((p for p in plan.trial.parts if p.node.name.value == base.facts.name), None)
            if own is not None and plan.location.function not in own.methods.values():
                return plan
    return None


def _moves_with(trial: TrialClass, blocked: set[str | None]) -> Finding:
    names = ", ".join(sorted(n for n in blocked if n))
    message = f"{trial.facts.name} shares code with {names}, which is blocked"
    return blocked_by(trial, Code.MOVES_WITH_BLOCKED, message, f"fix {names} first")


def _only(values: set[int | float | None]) -> list[int | float | None]:
    """Return the one value, None where there are several; nothing where there is none."""
    return list(values) if len(values) < 2 else [None]
