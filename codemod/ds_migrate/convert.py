"""The conversion of one family: model its trials, decide, apply the rules, render, check. All of it or none."""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import libcst as cst

from ds_migrate import detect
from ds_migrate.experiment import ConfigFacts, TrialFacts
from ds_migrate.options import Options
from ds_migrate.plan import Findings, Plan
from ds_migrate.project import Family, TrialClass
from ds_migrate.result import FileKind, FileResult, FileStatus, Finding, Severity, TrialResult, TrialStatus
from ds_migrate.rules import conversion_rules
from ds_migrate.rules.support import engine_name
from ds_migrate.syntax.source import SourceFile, UnreadableSource
from ds_migrate.syntax.tree import dotted_names
from ds_migrate.target import target_named
from ds_migrate.trial.build import build_trial, class_node
from ds_migrate.trial.context import Contexts
from ds_migrate.trial.clipping import Clipping, clipping_of
from ds_migrate.trial.decide import decide
from ds_migrate.trial.model import Form, Trial
from ds_migrate.trial.place import NoPlace, after_names, engine_place
from ds_migrate.trial.precision import Precision, precision_of

Read = Callable[[Path], "bytes | None"]


@dataclass
class Conversion:
    """``others`` are trials in the family's files that cannot be converted and need those files as they are."""

    family: Family
    others: Sequence[TrialClass]
    read: Read
    named: set[Path]
    options: Options
    problems: list[tuple[Path, Finding]] = field(default_factory=list)
    files: dict[Path, SourceFile] = field(default_factory=dict)
    plans: list[Plan] = field(default_factory=list)
    findings: Findings = field(default_factory=Findings)
    outputs: dict[Path, bytes] = field(default_factory=dict)

    @property
    def blocked(self) -> bool:
        return bool(self.problems) or self.findings.blocked

    # -- know -----------------------------------------------------------------------------------------------------

    def model(self) -> None:
        """Parse the files and model the trials; nothing is touched."""
        self._whole_family()
        for path in sorted(self.family.files):
            try:
                self.files[path] = SourceFile(path, self.read(path) or b"")
            except UnreadableSource as error:
                self.problems.append((path, Finding(error.code, Severity.ERROR, error.line, str(error), error.column)))
        if self.problems:
            return
        classes = {path: [] for path in self.files}  # type: dict[Path, list[object]]
        for trial in self.family.trials:
            node = class_node(self.files[trial.path], trial.facts.name, trial.facts.line)
            if node is not None:
                classes[trial.path].append(node)
        contexts = {file: Contexts(file, classes[path]) for path, file in self.files.items()}  # type: ignore[arg-type]
        parents = {parent for trial in self.family.trials for parent in trial.bases}
        shared: dict[SourceFile, dict[str, str]] = {}
        for facts in self.family.trials:
            if facts.key in parents and not _is_leaf(facts):
                continue
            trial = build_trial(facts, self.files, contexts)
            plan = Plan(trial, self.options, target_named(self.options.target), self.findings, deepspeed_imports=shared, contexts=contexts)
            _prepare(plan)
            self.plans.append(plan)

    def _whole_family(self) -> None:
        """Every file of the family must be named, and no other trial may need it as it is."""
        missing = sorted(path for path in self.family.files if path not in self.named)
        for trial in self.family.trials:
            if trial.path not in self.named:
                continue
            for path in missing:
                self.problems.append((trial.path, _finding(trial, "DSM014", f"{trial.facts.name} needs {path.name} converted with it, which was not named", f"name {path} too, or the folder that holds both")))  # fmt: skip
            for other in self.others:
                self.problems.append((trial.path, _finding(trial, "DSM015", f"{trial.facts.name} shares files with {other.facts.name}, which cannot be converted", "convert the other trial first, or part the two")))  # fmt: skip

    def facts(self, paths: Mapping[tuple[Path, str], Path] | None = None) -> Iterator[TrialFacts]:
        """What experiment configs must know of each trial."""
        from ds_migrate.rules.dsm205_engine import static_config

        status = TrialStatus.BLOCKED if self.blocked else TrialStatus.CONVERTED
        planned = {plan.trial.facts.key: plan for plan in self.plans}
        for trial in self.family.trials:
            plan = planned.get(trial.key)
            config = static_config(plan.trial) if plan is not None else {}
            path = (paths or {}).get(trial.key, trial.path.with_name("ds_config.json"))
            yield TrialFacts(
                trial.facts.name,
                trial.path,
                status,
                config,
                path,
                sums_gradients=plan is not None and not plan.experiment_average,
            )

    # -- convert --------------------------------------------------------------------------------------------------

    def plan(self, paths: Mapping[tuple[Path, str], Path], said: Mapping[tuple[Path, str], ConfigFacts]) -> None:
        """Apply every rule, then render and check."""
        for plan in self.plans:
            key = plan.trial.facts.key
            plan.ds_config_name = paths[key].name if key in paths else "ds_config.json"
            config = said.get(key)
            plan.experiment_average = config is None or config.averages != frozenset({False})
            plan.accumulates = config is not None and any(k > 1 for k in config.aggregation)
            plan.configured = config
        if self.problems or not self.plans:
            return
        for rule in conversion_rules():
            if rule.apply is not None:
                for plan in self.plans:
                    rule.apply(plan)
            elif rule.apply_file is not None:
                continue
        for rule in conversion_rules():
            if rule.apply_file is not None:
                for file in self.files.values():
                    rule.apply_file(file, self.plans)
        if self.blocked:
            return
        for path, file in self.files.items():
            before, after = file.data, file.render()
            problem = check(before, after)
            if problem is not None:
                self.problems.append((path, Finding("DSM003", Severity.ERROR, 1, problem, help="please report this file")))
            elif after != before:
                self.outputs[path] = after

    # -- say ------------------------------------------------------------------------------------------------------

    def results(self, result: Callable[[Path], FileResult]) -> Iterator[tuple[Path, FileResult]]:
        """The family's files as the report shows them."""
        by_path = {path: self.findings.by_file.get(file, []) for path, file in self.files.items()}
        status = TrialStatus.BLOCKED if self.blocked else TrialStatus.CONVERTED
        own_problem = {f.trial for found in by_path.values() for f in found if f.severity is Severity.BLOCKED}
        for path in sorted(self.family.files):
            trials = [t for t in self.family.trials if t.path == path]
            found = sorted(by_path.get(path, []), key=lambda f: (f.line, f.column, f.code))
            extra = [f for p, f in self.problems if p == path]
            if path not in self.named and not extra:
                continue
            file = result(path)
            file.kind = FileKind.PYTHON
            file.trials.extend(TrialResult(t.facts.name, t.facts.line, status) for t in trials)
            if not self.blocked:
                file.findings.extend(found)
                file.after = self.outputs.get(path)
                file.status = FileStatus.CHANGED if file.after is not None else FileStatus.UNCHANGED
            else:
                file.findings.extend(extra)
                file.findings.extend(f for f in found if f.severity is Severity.BLOCKED)
                file.status = FileStatus.ERROR if any(f.severity is Severity.ERROR for f in extra) else FileStatus.BLOCKED
                if own_problem and not self.problems:
                    file.findings.extend(_moves_with(t, own_problem) for t in trials if t.facts.name not in own_problem)
            yield path, file


def _is_leaf(trial: TrialClass) -> bool:
    """Whether a class that others build on is also complete by itself: its own wraps are then modelled through them."""
    return False if trial.facts.methods else True


def _finding(trial: TrialClass, code: str, message: str, help: str) -> Finding:  # noqa: A002
    return Finding(code, Severity.BLOCKED, trial.facts.line, message, trial=trial.facts.name, help=help)


def _moves_with(trial: TrialClass, blocked: set[str | None]) -> Finding:
    names = ", ".join(sorted(n for n in blocked if n))
    return _finding(trial, "DSM015", f"{trial.facts.name} moves together with {names}, which is blocked", f"unblock {names} first")


def _prepare(plan: Plan) -> None:
    """The decisions that every rule builds on."""
    trial = plan.trial
    trial.precision = Precision()
    helped = {use.attr for use in trial.helpers}
    if (not trial.models and "wrap_model" not in helped) or (not trial.optimizers and "wrap_optimizer" not in helped):
        _incomplete(plan, trial)
        return
    try:
        trial.place = engine_place(trial)
    except NoPlace as problem:
        plan.blocked(
            "DSM205", *_where(problem, trial), f"there is no place to make the engine: {problem}",
            "wrap models, optimizers and schedulers in __init__",
        )  # fmt: skip
        return
    for step in trial.steps:
        if step.owner is None:
            continue
        clipping = clipping_of(step, trial, trial.place.function)
        if clipping is None:
            continue
        known = trial.clipping.get(step.owner)
        same = known is None or (
            known.max_norm is not None and clipping.max_norm is not None and known.max_norm.deep_equals(clipping.max_norm)
        )
        trial.clipping[step.owner] = clipping if same else Clipping(None, step.clip)
    clipped = {s.owner for s in trial.steps if s.clip is not None}
    bare = {s.owner for s in trial.steps if s.clip is None}
    for owner in clipped & bare:
        if owner is not None:  # one step clips, another does not: only code can say that
            clip = next(s.clip for s in trial.steps if s.owner is owner and s.clip is not None)
            trial.clipping[owner] = Clipping(None, clip)
    norms = [c.max_norm for c in trial.clipping.values() if c.max_norm is not None]
    trial.place = after_names(trial.place, {n for norm in norms for n in dotted_names(norm)})
    kept = any(c.max_norm is None for c in trial.clipping.values())
    decide(trial, plan.options, clips=bool(trial.clipping), keeps_clip=kept)
    if trial.form is Form.COLLECTED:  # the engines share one config, so every function is kept
        trial.clipping = {owner: Clipping(None, c.function or c.max_norm) for owner, c in trial.clipping.items()}
    for optimizer in trial.optimizers:
        optimizer.engine = trial.models[0].target if trial.form is Form.SIMPLE else engine_name(optimizer)
    trial.precision = precision_of(trial)


def _where(problem: NoPlace, trial: Trial) -> tuple[SourceFile, cst.CSTNode]:
    if problem.wrap is not None:
        return problem.wrap.file, problem.wrap.call
    return trial.parts[0].file, trial.parts[0].node.name


def _incomplete(plan: Plan, trial: Trial) -> None:
    part = trial.parts[0]
    what = "wraps no model" if not trial.models else "wraps no optimizer"
    plan.blocked(
        "DSM205", part.file, part.node.name, f"{trial.name} {what} that can be seen here",
        "wrap it in __init__ through the context",
    )  # fmt: skip


def check(before: bytes, after: bytes) -> str | None:
    """What is wrong with a rendered file; None when it compiles, keeps every comment and has no PyTorchTrial left."""
    try:
        tree = ast.parse(after)
    except (SyntaxError, ValueError) as error:
        return f"the converted file does not parse: {error}"
    del tree
    facts = detect.module_facts(after)
    left = [c.name for c in facts.classes if detect.PYTORCH_TRIAL in c.bases]
    if left:
        return f"{', '.join(left)} would still be a PyTorchTrial"
    lost = _comments(before) - _comments(after)
    if lost:
        return f"a comment would be lost: {next(iter(lost))}"
    return None


def _comments(data: bytes) -> Counter[str]:
    try:
        return Counter(t.string for t in tokenize.tokenize(io.BytesIO(data).readline) if t.type == tokenize.COMMENT)
    except (SyntaxError, tokenize.TokenError):
        return Counter()
