"""Rename a trial's own ``save`` and ``load``, which are hooks of DeepSpeedTrial."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.conversion.rule_context import RuleContext
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import dotted, targets
from ds_migrate.syntax.source import SourceFile
from ds_migrate.trial.model import Trial
from ds_migrate.trial.references import references

CODE = Code.TAKEN_NAMES

_TAKEN = ("save", "load")


def apply(ctx: RuleContext) -> None:
    for name in _TAKEN:
        own = list(_definitions(ctx.trial, name))
        if not own:
            continue
        used = {node.attr.value for part in ctx.trial.parts for node in part.file.nodes(cst.Attribute)}
        new = f"{name}_" if f"{name}_" not in used else f"{name}__"
        for file, node in (*own, *_uses(ctx.trial, name)):
            if file.edits.once(node, CODE):
                file.replace(node, new)
                ctx.converted(CODE, file, node, f"{name} is a hook of DeepSpeedTrial, the trial's own is {new}")


def _definitions(trial: Trial, name: str) -> Iterator[tuple[SourceFile, cst.CSTNode]]:
    """Yield where the trial's classes give the name a meaning: methods, class attributes and attributes of ``self``."""
    for part in trial.parts:
        if name in part.methods:
            yield part.file, part.methods[name].name
        for line in part.node.body.body:
            for small in line.body if isinstance(line, cst.SimpleStatementLine) else ():
                yield from ((part.file, target) for target in targets(small) if dotted(target) == name)
        for function in part.methods.values():
            for assign in part.file.nodes(cst.Assign, cst.AnnAssign, below=function):
                for target in targets(assign):
                    if isinstance(target, cst.Attribute) and dotted(target) == f"self.{name}":
                        yield part.file, target.attr


def _uses(trial: Trial, name: str) -> Iterator[tuple[SourceFile, cst.CSTNode]]:
    """Yield the name on ``self``, on ``super()``, and on what holds the trial."""
    for file, node, _ in references(trial, f"self.{name}"):
        if isinstance(node, cst.Attribute):
            yield file, node.attr
    for part, function in trial.methods():
        for node in part.file.nodes(cst.Attribute, below=function):
            if node.attr.value == name and isinstance(node.value, cst.Call) and dotted(node.value.func) == "super":
                yield part.file, node.attr
