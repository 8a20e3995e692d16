"""The conversion of one group of trials: model them, decide, apply the rules, render, check. All of it or none."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path

import libcst as cst

from ds_migrate.conversion.output_check import check
from ds_migrate.conversion.preconditions import problems_before, problems_of_configs
from ds_migrate.conversion.rule_context import Findings, RuleContext
from ds_migrate.conversion.separation import can_separate, names_left, separate, shared_change
from ds_migrate.conversion.shared_base import without_trial_base
from ds_migrate.conversion.values import ConversionUnit
from ds_migrate.decisions import decide, reconcile
from ds_migrate.decisions.engine_plan import Accumulation, Blocked, EnginePlan
from ds_migrate.decisions.static_config import static_config
from ds_migrate.experiment import ConfigFacts
from ds_migrate.findings import Finding, Severity
from ds_migrate.project.library_bases import LIBRARY_BASE
from ds_migrate.project.trial_class import TrialClass
from ds_migrate.rules.codes import Code
from ds_migrate.rules.dsm330_launch import aggregations_of
from ds_migrate.rules.registry import conversion_rules
from ds_migrate.syntax.import_order import sort_like
from ds_migrate.syntax.line_folding import fold_new
from ds_migrate.syntax.source import SourceError, SourceFile
from ds_migrate.targets import target_named
from ds_migrate.trial.builder import build_trial, class_node
from ds_migrate.trial.context import ContextNames, link
from ds_migrate.trial.helper_files import HelperFiles
from ds_migrate.trial.model import Trial
from ds_migrate.trial.top_level import TopLevel

_SHOWN = 300  # characters of an unexpected error: one that holds a syntax node prints all below it


@dataclass
class Conversion:
    """A conversion at work. ``problems`` keep the whole unit from being converted."""

    unit: ConversionUnit
    whole: Conversion | None = None  # that of all trials, where some of the unit stay as they are
    staying: tuple[TrialClass, ...] = ()
    reasons: dict[Path, list[Finding]] = field(default_factory=dict)  # why trials of the unit stay
    shared: str = ""  # what keeps trials from being converted without the blocked ones
    plain_base: str = ""  # the base class that is no trial any more, so that it serves both
    problems: list[tuple[Path, Finding]] = field(default_factory=list)
    files: dict[Path, SourceFile] = field(default_factory=dict)
    contexts: list[RuleContext] = field(default_factory=list)
    refused: dict[tuple[Path, str], Blocked] = field(default_factory=dict)  # trials without engines
    static: dict[tuple[Path, str], dict[str, object]] = field(default_factory=dict)  # DeepSpeed configs, by trial
    findings: Findings = field(default_factory=Findings)
    outputs: dict[Path, bytes] = field(default_factory=dict)

    @property
    def blocked(self) -> bool:
        return bool(self.problems or self.shared) or self.findings.blocked

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

    def blocked_trials(self) -> list[TrialClass]:
        """Return the trials of the unit that their own code keeps from being converted."""
        names = {f.trial for found in self.located_findings().values() for f in found if _blocks(f)}
        return [trial for trial in self.unit.trials if trial.facts.name in names]

    def without(self, staying: Sequence[TrialClass]) -> Conversion | None:
        """Return the conversion of the unit's trials but those that stay, None where that is no way."""
        whole = self.whole or self
        rest = tuple(trial for trial in self.unit.trials if trial not in staying)
        unit = replace(self.unit, trials=rest, others=())
        if not (staying and rest and can_separate(unit)) or self.problems != list(problems_before(self.unit)):
            return None
        if any(problems_before(unit)):
            return None
        reasons = {path: [*found] for path, found in self.reasons.items()}
        for path, found in self.located_findings().items():
            reasons.setdefault(path, []).extend(filter(_blocks, found))
        return Conversion(unit, whole, (*self.staying, *staying), reasons)

    def with_plain_base(self) -> Conversion | None:
        """Return the conversion with a plain class for the base that staying trials share, None where it cannot be."""
        unit = without_trial_base(self.unit, self.staying, self.shared) if self.staying and self.shared else None
        if unit is None:
            return None
        return Conversion(unit, self.whole, self.staying, self.reasons, plain_base=self.shared)

    # -- model -----------------------------------------------------------------------------------------------------

    def model(self) -> None:
        """Parse the files, model the trials and decide on them; nothing is changed."""
        self.problems += problems_before(self.unit)
        for path, data in sorted({**self.unit.sources, **self.unit.library}.items()):
            try:
                self.files[path] = SourceFile(path, data, self.unit.accepted.get(path, frozenset()))
            except SourceError as error:
                self.problems.append((path, error.finding))
        if self.problems:
            return
        helpers = HelperFiles(self.unit.helpers)
        separate(self.files, self.unit, self.staying)
        classes: dict[Path, list[cst.ClassDef]] = {path: [] for path in self.files}
        for member in self.unit.trials:
            own = class_node(self.files[member.path], member.facts.name, member.facts.line)
            bases = [(path, class_node(self.files[path], name)) for path, name in member.bases]
            for path, node in ((member.path, own), *bases):
                if node is not None and node not in classes[path]:
                    classes[path].append(node)
        context_names = {file: ContextNames(file, classes[path]) for path, file in self.files.items()}
        link(context_names.values())
        unused: Set[cst.CSTNode] = frozenset()
        if _has_helpers(context_names.values()):
            unused = TopLevel(self.files.values()).unused(self.unit.used_beside)
        parents = {parent for member in self.unit.trials for parent in member.bases}
        target = target_named(self.unit.options.target)
        plans: list[EnginePlan] = []
        for member in sorted(self.unit.trials, key=lambda t: -len(t.bases)):  # the most derived ones know most
            trial = build_trial(member, self.files, context_names, unused, helpers)
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
        frequencies = {*(config.aggregation if config is not None else ()), *self.scripts_aggregations()}
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

    def aggregations_by_file(self) -> dict[Path, int | None]:
        found = {path: aggregations_of(file) for path, file in self.files.items()}
        return {path: k if isinstance(k, int) else None for path, given in found.items() for k in _only(given)}

    def scripts_aggregations(self) -> set[int | float | None]:
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
        if not self.blocked:
            self.shared = shared_change(self.files.values())
        if self.blocked:
            return
        unused = {node.name.value for ctx in self.contexts for node in ctx.trial.unused_definitions}
        for path in self.unit.sources:
            file = self.files[path]
            before, after = file.data, file.render()
            problem = check(before, after, unused | names_left(file))
            if problem is None and path.suffix != ".ipynb":  # a block of imports may span two cells
                after = fold_new(before, sort_like(before, after), file.module.default_indent, file.width)
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

    def stayed(self, path: Path | None = None) -> list[TrialClass]:
        """Return the unit's own trials that stay, in a file or in all; the project reports others itself."""
        own = (self.whole or self).unit.trials
        return [trial for trial in self.staying if trial in own and path in (None, trial.path)]

    def located_findings(self) -> dict[Path, list[Finding]]:
        """Return the findings by file, those in a library's base class at the classes that are built on it."""
        found = {path: [*listed] for path, listed in self.findings.by_file.items() if path not in self.unit.library}
        for finding in (f for path in self.unit.library for f in self.findings.by_file.get(path, ())):
            for trial in self.unit.trials if finding.severity is not Severity.CONVERTED else ():
                if trial.facts.name == finding.trial:
                    here = replace(finding, line=trial.facts.line, column=0)
                    found.setdefault(trial.path, []).append(here)
        return found


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


def _has_helpers(known: Iterable[ContextNames]) -> bool:
    """Return whether code outside of trials calls something of its context."""
    return any(use.owner not in names.classes and use.call is not None for names in known for use in names.uses)


def _blocks(finding: Finding) -> bool:
    return finding.severity is Severity.BLOCKED


def _only(values: set[int | float | None]) -> list[int | float | None]:
    """Return the one value, None where there are several; nothing where there is none."""
    return list(values) if len(values) < 2 else [None]
