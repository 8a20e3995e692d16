"""A base class that makes trials of others: it becomes a plain class where some of these trials stay as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import libcst as cst

from ds_migrate.conversion.values import ConversionUnit
from ds_migrate.project.trial_class import TrialClass
from ds_migrate.syntax.nodes import dotted, last_name

_TRIAL = "PyTorchTrial"


def without_trial_base(unit: ConversionUnit, staying: Sequence[TrialClass], name: str) -> ConversionUnit | None:
    """Return the unit with a base class that is no trial any more: what is built on it names PyTorchTrial itself.

    A class ``Base(PyTorchTrial)`` that both converted and staying trials are built on would have to be two classes.
    ``Base`` alone does for both, with ``Good(Base, PyTorchTrial)`` and ``Bad(Base, PyTorchTrial)``: Python looks into
    the same classes in the same order. None where that is not all, or not in one file.
    """
    base = next((trial for trial in unit.trials if trial.facts.name == name), None)
    if base is None or base.bases or base.key in unit.config_facts:
        return None
    built = {trial.facts.name: trial for trial in (*unit.trials, *staying) if base.key in trial.bases}
    module = cst.parse_module(unit.sources[base.path])
    classes = [node for node in module.body if isinstance(node, cst.ClassDef)]
    direct = {node.name.value for node in classes if name in _bases(node)}
    own = [node for node in classes if node.name.value == name]
    trial_bases = [arg for node in own for arg in node.bases if _last(arg) == _TRIAL]
    is_here = all(trial.path == base.path for trial in built.values())
    if len(own) != 1 or len(trial_bases) != 1 or not is_here or not direct <= built.keys():
        return None
    body = [
        _without_trial(node) if node is own[0]
        else _with_trial(node, trial_bases[0].value) if isinstance(node, cst.ClassDef) and node.name.value in direct
        else node
        for node in module.body
    ]  # fmt: skip
    sources = {**unit.sources, base.path: module.with_changes(body=body).bytes}
    return replace(unit, sources=sources, trials=tuple(trial for trial in unit.trials if trial is not base))


def _bases(node: cst.ClassDef) -> list[str]:
    return [dotted(arg.value) or "" for arg in node.bases]


def _last(arg: cst.Arg) -> str:
    return last_name(arg.value)


def _without_trial(node: cst.ClassDef) -> cst.ClassDef:
    """Return a class that is no trial: without brackets where it has no other base."""
    kept = [arg for arg in node.bases if _last(arg) != _TRIAL]
    if kept:
        return node.with_changes(bases=[*kept[:-1], kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)])
    return node.with_changes(bases=[], lpar=cst.MaybeSentinel.DEFAULT, rpar=cst.MaybeSentinel.DEFAULT)


def _with_trial(node: cst.ClassDef, trial: cst.BaseExpression) -> cst.ClassDef:
    """Return a class that names the trial's class last."""
    if any(_last(arg) == _TRIAL for arg in node.bases):
        return node
    *bases, last = node.bases
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    return node.with_changes(bases=[*bases, last.with_changes(comma=comma), cst.Arg(trial.deep_clone())])
