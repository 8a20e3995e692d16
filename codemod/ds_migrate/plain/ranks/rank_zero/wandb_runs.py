"""Runs of wandb that a program only gives something: a disabled run takes the same calls, and records nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from ds_migrate.syntax.nodes import dotted, targets
from ds_migrate.syntax.source import SourceFile

_METHODS = frozenset(
    {"alert", "define_metric", "finish", "log", "log_code", "mark_preempting", "save", "update", "watch"}
)


def is_given(node: cst.BaseExpression, file: SourceFile) -> bool:
    """Return whether settings, results or a run are only given something here, or asked whether there is a run.

    So are they in ``wandb.config.update(args)`` and ``wandb.run.summary["best"] = accuracy``.
    """
    around = file.parent(node)
    if isinstance(around, cst.Attribute):
        call = file.parent(around)
        if isinstance(call, cst.Call) and call.func is around:
            return around.attr.value in _METHODS and isinstance(file.parent(call), cst.Expr)
        return isinstance(call, cst.AssignTarget) or (
            around.attr.value in ("config", "summary") and is_given(around, file)
        )
    if isinstance(around, cst.Subscript) and around.value is node:
        return isinstance(file.parent(around), cst.AssignTarget)
    return isinstance(around, (cst.AssignTarget, cst.AsName)) or _asks_for_run(node, around)


def is_only_recorded_to(call: cst.Call, file: SourceFile, files: Sequence[SourceFile]) -> bool:
    """Return whether the run that a call of ``wandb.init()`` returns has a name, and is given something at most."""
    around = file.parent(call)
    held: Sequence[cst.BaseExpression] = targets(around) if isinstance(around, cst.Assign) else []
    if isinstance(around, cst.WithItem):
        if around.asname is None:
            return True
        held = [around.asname.name]
    if len(held) != 1 or not isinstance(held[0], (cst.Name, cst.Attribute)):
        return False
    target = held[0]
    if isinstance(target, cst.Name) and any(
        isinstance(alias, cst.ImportAlias) and dotted(alias.name) == target.value
        for at in files for alias in at.nodes(cst.ImportAlias)
    ):  # fmt: skip
        return False
    return all(is_given(use, at) for use, at in _uses(target, file, files))


def _uses(
    target: cst.Name | cst.Attribute, file: SourceFile, files: Sequence[SourceFile]
) -> Iterator[tuple[cst.Name | cst.Attribute, SourceFile]]:
    """Yield where a name or attribute may be used: an attribute of that name, of whatever it is."""
    if isinstance(target, cst.Attribute):
        yield from ((use, at) for at in files for use in at.attributes_by_name.get(target.attr.value, ()))
        return
    parts = {id(part.attr) for part in file.nodes(cst.Attribute)} | {
        id(arg.keyword) for arg in file.nodes(cst.Arg) if arg.keyword is not None
    }
    for use in file.nodes(cst.Name):
        if use.value == target.value and id(use) not in parts:
            yield use, file


def _asks_for_run(node: cst.BaseExpression, around: cst.CSTNode | None) -> bool:
    """Return whether a run is compared with None, or is a condition itself."""
    if isinstance(around, cst.Comparison) and around.left is node:
        return all(dotted(target.comparator) == "None" for target in around.comparisons)
    return isinstance(around, (cst.If, cst.IfExp)) and around.test is node
