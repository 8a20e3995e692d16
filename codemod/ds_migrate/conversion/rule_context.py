"""The input of a rule: the trial's facts, the decisions, the choices of the run, and where it reports what it did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import libcst as cst

from ds_migrate.decisions.engine_plan import EnginePlan
from ds_migrate.experiment.model import ConfigFacts
from ds_migrate.findings import Finding, Severity
from ds_migrate.options import Options
from ds_migrate.syntax.nodes import docstring, dotted, parameters, walk
from ds_migrate.syntax.source import SourceFile
from ds_migrate.targets import DEEPSPEED_MODULE, MOVED, Target
from ds_migrate.trial.context import ContextNames, ContextUse
from ds_migrate.trial.model import Trial
from ds_migrate.upgrade.result import Notice


@dataclass
class Findings:
    """Findings by file; the same finding of a shared base class or helper is kept once."""

    by_file: dict[Path, list[Finding]] = field(default_factory=dict)

    def report(
        self,
        severity: Severity,
        code: str,
        trial: Trial,
        file: SourceFile,
        node: cst.CSTNode,
        message: str,
        help: str | None = None,  # noqa: A002
    ) -> bool:
        """Add a finding about a node. Return False when it was there already."""
        line, column = file.position(node)
        finding = Finding(code, severity, line, message, column, trial=trial.name, help=help)
        known = self.by_file.setdefault(file.path, [])
        if any(
            (f.code, f.line, f.column, f.message) == (finding.code, finding.line, finding.column, finding.message)
            for f in known
        ):
            return False
        known.append(finding)
        return True

    @property
    def blocked(self) -> bool:
        return any(f.severity is Severity.BLOCKED for found in self.by_file.values() for f in found)


@dataclass
class RuleContext:
    """The conversion of one trial, filled in by the rules in their order."""

    plan: EnginePlan
    options: Options
    target: Target
    findings: Findings
    handled: set[cst.CSTNode] = field(default_factory=set)
    configured: ConfigFacts | None = None  # from the experiment configs that name the trial
    ds_config_name: str = "ds_config.json"
    engine_scheduler: str = ""  # the schedule that deepspeed.initialize takes: DSM203 sets it for DSM205
    # names that each file takes from the deepspeed module: name -> what the file calls it ("" is the module itself)
    deepspeed_imports: dict[SourceFile, dict[str, str]] = field(default_factory=dict)
    context_names: Mapping[SourceFile, ContextNames] = field(default_factory=dict)
    written: dict[tuple[SourceFile, str], str] = field(default_factory=dict)  # helper classes written into files
    upgraded: Mapping[Path, Sequence[Notice]] = field(default_factory=dict)  # files of old trials

    @property
    def trial(self) -> Trial:
        return self.plan.trial

    def handle(self, use: ContextUse) -> None:
        """Mark a use of the context as dealt with; what no rule marks is blocked at the end."""
        self.handled.add(use.node)

    def context_attribute(self) -> str:
        """Return how a method reaches the context: ``self.context``, or the trial's name for it; a trial that never
        kept its context does so from now on."""
        known = sorted({a for part in self.trial.parts for a in self.context_names[part.file].kept_by(part.node)})
        if "context" in known:
            return "self.context"
        if known:
            return f"self.{known[0]}"
        if not any(_reads_context(part.node) for part in self.trial.parts):
            self._keep_context()
        return "self.context"

    def _keep_context(self) -> None:
        for part in self.trial.parts:
            init = part.methods.get("__init__")
            if init is None or len(parameters(init)) < 2:
                continue
            name = parameters(init)[1].name.value
            statement = next(s for s in init.body.body if s is not docstring(init))
            if part.file.edits.once(init, "keep context") and isinstance(statement, cst.BaseStatement):
                part.file.before(statement, f"self.context = {name}", above_comments=True)
            return

    def deepspeed_name(self, file: SourceFile, name: str) -> str:
        """Return what ``file`` calls ``<target>.pytorch.deepspeed.<name>``: imported by name, or taken from the module
        where the file takes ``pytorch.PyTorchTrial`` from a module too."""
        module = self.target.module(DEEPSPEED_MODULE)
        for bound, qualified in file.names.bindings.items():
            if qualified in (f"{module}.{name}", f"{DEEPSPEED_MODULE}.{name}"):
                return bound
        wanted = self.deepspeed_imports.setdefault(file, {})
        if name in wanted:
            return wanted[name]
        if self._by_module(file):
            if "" not in wanted:
                wanted[""] = file.names.fresh("det_ds", "det_deepspeed")
            return f"{wanted['']}.{name}"
        wanted[name] = file.names.fresh(name, f"{name}_")
        return wanted[name]

    @staticmethod
    def _by_module(file: SourceFile) -> bool:
        """Return whether the file spells ``pytorch.PyTorchTrial`` rather than importing the class."""
        bindings = file.names.bindings.values()
        if any(q in MOVED for q in bindings):
            return False
        return any(q in ("determined", "determined.pytorch") for q in bindings)

    def converted(self, code: str, file: SourceFile, node: cst.CSTNode, message: str) -> None:
        """Report what was converted."""
        self.findings.report(Severity.CONVERTED, code, self.trial, file, node, message)

    def review(self, code: str, file: SourceFile, node: cst.CSTNode, message: str, help: str | None = None) -> None:  # noqa: A002
        """Report what was converted and a person should know. With ``help``, a person should also do something: then
        the converted code has it in a comment that fails ``--check`` until it is gone."""
        if self.findings.report(Severity.REVIEW, code, self.trial, file, node, message, help) and help is not None:
            file.mark(node, code, message, help)

    def blocked(self, code: str, file: SourceFile, node: cst.CSTNode, message: str, help: str) -> None:  # noqa: A002
        """Report why the trial stays as it is, and the smallest change that would unblock it."""
        self.findings.report(Severity.BLOCKED, code, self.trial, file, node, message, help)


def _reads_context(node: cst.CSTNode) -> bool:
    """Return whether the class reads ``self.context`` (some base class set it)."""
    return any(isinstance(n, cst.Attribute) and dotted(n) == "self.context" for n in walk(node))
