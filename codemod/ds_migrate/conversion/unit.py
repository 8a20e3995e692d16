"""The conversion of one family: model its trials, decide, apply the rules, render, check. All of it or none."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import libcst as cst

from ds_migrate.conversion.output_check import check
from ds_migrate.conversion.rule_context import Findings, RuleContext
from ds_migrate.decisions import decide, reconcile
from ds_migrate.decisions.engine_plan import Accumulation, Blocked, EnginePlan
from ds_migrate.decisions.static_config import static_config
from ds_migrate.experiment import ConfigFacts, TrialFacts
from ds_migrate.findings import FileKind, FileResult, FileStatus, Finding, Severity, TrialResult, TrialStatus
from ds_migrate.options import Options
from ds_migrate.project.trials import Family, TrialClass
from ds_migrate.rules.codes import Code
from ds_migrate.rules.dsm330_launch import aggregations_of
from ds_migrate.rules.registry import conversion_rules
from ds_migrate.syntax.source import SourceError, SourceFile
from ds_migrate.targets import target_named
from ds_migrate.trial.builder import build_trial, class_node
from ds_migrate.trial.context import ContextNames, link
from ds_migrate.trial.model import Trial

Read = Callable[[Path], "bytes | None"]


@dataclass
class Conversion:
    """``others`` are trials in the family's files that cannot be converted and need those files as they are."""

    family: Family
    others: Sequence[TrialClass]
    read: Read
    named: Callable[[Path], bool]  # whether a file may be written
    options: Options
    problems: list[tuple[Path, Finding]] = field(default_factory=list)
    files: dict[Path, SourceFile] = field(default_factory=dict)
    contexts: list[RuleContext] = field(default_factory=list)
    refused: dict[tuple[Path, str], Blocked] = field(default_factory=dict)  # trials without engines
    findings: Findings = field(default_factory=Findings)
    outputs: dict[Path, bytes] = field(default_factory=dict)

    @property
    def unit(self) -> str:
        """The name of what is written together."""
        return ":".join(map(str, self.family.trials[0].key))

    @property
    def blocked(self) -> bool:
        return bool(self.problems) or self.findings.blocked

    def attempt(self, step: Callable[[], None]) -> None:
        """Take a step of the conversion. Whatever goes wrong in it is this family's problem and no other's."""
        try:
            step()
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            message = f"ds-migrate failed: {type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
            for path in {trial.path for trial in self.family.trials}:
                self.problems.append(
                    (path, Finding(Code.FAILED_CHECK, Severity.ERROR, 1, message, help="please report this file"))
                )

    # -- know -----------------------------------------------------------------------------------------------------

    def model(self, said: Mapping[tuple[Path, str], ConfigFacts]) -> None:
        """Parse the files and model the trials, with what experiment configs say of them; nothing is touched."""
        self._whole_family()
        for path in sorted(self.family.files):
            try:
                self.files[path] = SourceFile(path, self.read(path) or b"")
            except SourceError as error:
                self.problems.append((path, Finding(error.code, Severity.ERROR, error.line, str(error), error.column)))
        if self.problems:
            return
        classes: dict[Path, list[cst.ClassDef]] = {path: [] for path in self.files}
        for member in self.family.trials:
            own = class_node(self.files[member.path], member.facts.name, member.facts.line)
            bases = [(path, class_node(self.files[path], name)) for path, name in member.bases]
            for path, node in ((member.path, own), *bases):
                if node is not None and node not in classes[path]:
                    classes[path].append(node)
        context_names = {file: ContextNames(file, classes[path]) for path, file in self.files.items()}
        link(context_names.values())
        parents = {parent for member in self.family.trials for parent in member.bases}
        target = target_named(self.options.target)
        plans: list[EnginePlan] = []
        for member in sorted(self.family.trials, key=lambda t: -len(t.bases)):  # the most derived ones know most
            trial = build_trial(member, self.files, context_names)
            if member.key in parents and (trial.is_abstract or not (trial.wraps_model and trial.wraps_optimizer)):
                continue  # a base class that is no trial by itself
            if member.key in parents and (below := _made_below(member, plans)):
                self._no_engine_of_its_own(trial, below.trial, said.get(member.key))
                continue
            self._configs_that_bind(trial, said.get(member.key))
            decision = decide(trial, self.options, target, self._accumulation(said.get(member.key)))
            if isinstance(decision, EnginePlan):
                plans.append(decision)
            else:
                self.refused[member.key] = decision
        plans, differing = reconcile(plans, self.options, target)
        for blocked in (*self.refused.values(), *differing):
            self.findings.report(
                Severity.BLOCKED, Code.ENGINE, blocked.trial, blocked.file, blocked.node, blocked.message, blocked.help
            )
        imports: dict[SourceFile, dict[str, str]] = {}
        written: dict[tuple[SourceFile, str], str] = {}
        self.contexts = [
            RuleContext(
                plan, self.options, target, self.findings, configured=said.get(plan.trial.facts.key),
                deepspeed_imports=imports, context_names=context_names, written=written,
            )
            for plan in plans
        ]  # fmt: skip

    def _accumulation(self, config: ConfigFacts | None) -> Accumulation:
        frequencies = {*(config.aggregation if config is not None else ()), *self._scripts_aggregations()}
        return Accumulation(not frequencies <= {1}, config is None or config.averages != frozenset({False}))

    def _no_engine_of_its_own(self, base: Trial, derived: Trial, config: ConfigFacts | None) -> None:
        """A trial in full whose engines a class built on it makes: blocked where it is trained itself."""
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
                f"{base.name} has no engine of its own any more, {derived.name} makes it: it trains only as that",
            )  # fmt: skip

    def _whole_family(self) -> None:
        """Every file of the family must be named, no other trial may need it as it is, and a name means one class."""
        missing = sorted(path for path in self.family.files if not self.named(path))
        for trial in self.family.trials:
            if not self.named(trial.path):
                continue
            name = trial.facts.name
            if trial.again:
                message = (
                    f"line {trial.again} gives the name {name} to another class: which one is meant cannot be told"
                )
                self._problem(
                    trial, Code.MOVES_WITH_BLOCKED, message, "give each class a name of its own, or keep one of them"
                )
            for path in missing:
                message = f"{name} needs {path.name} converted with it, which was not named"
                self._problem(trial, Code.FILE_NOT_NAMED, message, f"name {path} too, or the folder that holds both")
            for other in self.others:
                message = f"{name} shares files with {other.facts.name}, which stays as it is"
                self._problem(
                    trial,
                    Code.MOVES_WITH_BLOCKED,
                    message,
                    "convert the other trial first, part the two, or skip both (# ds-migrate: skip)",
                )

    def _problem(self, trial: TrialClass, code: str, message: str, help: str) -> None:  # noqa: A002
        self.problems.append((trial.path, _finding(trial, code, message, help)))

    def facts(self, paths: Mapping[tuple[Path, str], Path] | None = None) -> Iterator[TrialFacts]:
        """What experiment configs must know of each trial."""
        status = TrialStatus.BLOCKED if self.blocked else TrialStatus.CONVERTED
        decided: dict[tuple[Path, str], EnginePlan | Blocked] = {**self.refused}
        decided |= {ctx.trial.facts.key: ctx.plan for ctx in self.contexts}
        given = self._scripts_aggregations()
        accumulates = next(iter(given)) if len(given) == 1 else None
        for trial in self.family.trials:
            decision = decided.get(trial.key)
            config = static_config(decision, target_named(self.options.target)) if decision is not None else {}
            path = (paths or {}).get(trial.key, trial.path.with_name("ds_config.json"))
            yield TrialFacts(
                trial.facts.name,
                trial.path,
                status,
                config,
                path,
                aggregation=accumulates if isinstance(accumulates, int) and accumulates > 1 else None,
                aggregations=self._aggregations_by_file(),
                sums_gradients=isinstance(decision, EnginePlan) and not decision.accumulation.averages,
            )

    def _aggregations_by_file(self) -> dict[Path, int | None]:
        found = {path: aggregations_of(file) for path, file in self.files.items()}
        return {path: k if isinstance(k, int) else None for path, given in found.items() for k in _only(given)}

    def _scripts_aggregations(self) -> set[int | float | None]:
        return {k for file in self.files.values() for k in aggregations_of(file)}

    # -- convert --------------------------------------------------------------------------------------------------

    def plan(self, paths: Mapping[tuple[Path, str], Path]) -> None:
        """Apply every rule, then render and check."""
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
        for path, file in self.files.items():
            before, after = file.data, file.render()
            problem = check(before, after)
            if problem is not None and problem.left:
                help_text = "call it on the context itself, where the context is in sight"
                self.problems.append(
                    (path, Finding(Code.CONTEXT_API, Severity.BLOCKED, problem.line, problem.message, help=help_text))
                )
            elif problem is not None:
                error = Finding(Code.FAILED_CHECK, Severity.ERROR, 1, problem.message, help="please report this file")
                self.problems.append((path, error))
            elif after != before:
                self.outputs[path] = after

    def _configs_that_bind(self, trial: Trial, config: ConfigFacts | None) -> None:
        """A config whose accumulation must move along with the source and may not be written, or configs that want two
        different sources."""
        if config is None or config.aggregation <= {1}:
            return
        if len(config.averages) > 1:
            message = f"the configs of {trial.name} disagree on average_aggregated_gradients, which its source says"
            self._problem(
                trial.facts,
                Code.AVERAGE_AGGREGATED_GRADIENTS,
                message,
                "use one value in all configs that accumulate",
            )
        for path in config.configs:
            if not self.named(path):
                message = f"{trial.name} needs {path.name} converted with it: it sets aggregation_frequency"
                self._problem(
                    trial.facts, Code.FILE_NOT_NAMED, message, f"name {path} too, or the folder that holds both"
                )

    def close(self) -> None:
        """Let go of the parsed files; what there is to say of them stays."""
        for file in self.files.values():
            file.close()
        self.files.clear()
        self.contexts.clear()

    # -- say ------------------------------------------------------------------------------------------------------

    def results(self, result: Callable[[Path], FileResult]) -> Iterator[tuple[Path, FileResult]]:
        """The family's files as the report shows them."""
        by_path = self.findings.by_file
        status = TrialStatus.BLOCKED if self.blocked else TrialStatus.CONVERTED
        own_problem = {f.trial for found in by_path.values() for f in found if f.severity is Severity.BLOCKED}
        for path in sorted(self.family.files):
            trials = [t for t in self.family.trials if t.path == path]
            found = sorted(by_path.get(path, []), key=lambda f: (f.line, f.column, f.code))
            extra = [f for p, f in self.problems if p == path]
            if not self.named(path) and not extra:
                continue
            file = result(path)
            file.kind, file.units = FileKind.PYTHON, file.units | {self.unit}
            file.trials.extend(TrialResult(t.facts.name, t.facts.line, status) for t in trials)
            if not self.blocked:
                file.findings.extend(found)
                file.after = self.outputs.get(path)
                file.status = FileStatus.CHANGED if file.after is not None else FileStatus.UNCHANGED
            else:
                file.findings.extend(extra)
                file.findings.extend(f for f in found if f.severity is Severity.BLOCKED)
                failed = any(f.severity is Severity.ERROR for f in extra)
                file.status = FileStatus.ERROR if failed else FileStatus.BLOCKED
                if own_problem and not self.problems:
                    file.findings.extend(_moves_with(t, own_problem) for t in trials if t.facts.name not in own_problem)
            yield path, file


def _made_below(base: TrialClass, plans: Sequence[EnginePlan]) -> EnginePlan | None:
    """Return the plan of a class built on ``base`` that makes its engines elsewhere: made in the base too, there would
    be two."""
    for plan in plans:
        if base.key in plan.trial.facts.bases:
            own = next((p for p in plan.trial.parts if p.node.name.value == base.facts.name), None)
            if own is not None and plan.location.function not in own.methods.values():
                return plan
    return None


def _finding(trial: TrialClass, code: str, message: str, help: str) -> Finding:  # noqa: A002
    return Finding(code, Severity.BLOCKED, trial.facts.line, message, trial=trial.facts.name, help=help)


def _moves_with(trial: TrialClass, blocked: set[str | None]) -> Finding:
    names = ", ".join(sorted(n for n in blocked if n))
    message = f"{trial.facts.name} moves together with {names}, which is blocked"
    return _finding(trial, Code.MOVES_WITH_BLOCKED, message, f"unblock {names} first")


def _only(values: set[int | float | None]) -> list[int | float | None]:
    """The one value, None where there are several; nothing where there is none."""
    return list(values) if len(values) < 2 else [None]
