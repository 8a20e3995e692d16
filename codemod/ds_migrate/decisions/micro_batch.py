"""The size of a micro-batch, as an expression where the engines are made."""

from __future__ import annotations

from collections.abc import Collection

import libcst as cst

from ds_migrate.decisions.engine_location import EngineLocation
from ds_migrate.syntax.nodes import argument, code, dotted, number, targets, walk
from ds_migrate.syntax.one_line import expression_text
from ds_migrate.syntax.source import SourceFile
from ds_migrate.trial.model import Trial


def micro_batch_size(
    trial: Trial, location: EngineLocation, context: str, used: Collection[str], hparams: Collection[str]
) -> str:
    """Return ``context.get_per_slot_batch_size()`` where the trial has a global batch size, else what its training
    loader is given. DeepSpeed uses the number for its own bookkeeping only, so 1 does where neither is there.

    ``location``: where the engines are made. ``context``: the expression of the context. ``used``: what the trial's
    files take from contexts. ``hparams``: the hyperparameters that every experiment config sets.
    """
    if {"get_per_slot_batch_size", "get_global_batch_size"} & {*used} or "global_batch_size" in hparams:
        return f"{context}.get_per_slot_batch_size()"
    for part, function in trial.methods("build_training_data_loader"):
        for node in walk(function):
            if isinstance(node, cst.Call) and (code(node.func).endswith("DataLoader")):
                given = argument(node, 1, "batch_size")
                if given is not None and _is_known(given.value, part.file, location):
                    return expression_text(given.value)
    return "1"


def _is_known(size: cst.BaseExpression, file: SourceFile, location: EngineLocation) -> bool:
    """Return whether a loader's batch size is the same expression where the engines are made: a number, or attributes
    of the trial that are set above, and items and hyperparameters taken from them."""
    if isinstance(number(size), int):
        return True
    if isinstance(size, cst.Subscript) and all(isinstance(n, cst.SimpleString) for e in size.slice for n in _index(e)):
        return _is_known(size.value, file, location)
    if isinstance(size, cst.Call):
        asks = isinstance(size.func, cst.Attribute) and size.func.attr.value in ("get_hparam", "get_hparams")
        plain = all(isinstance(arg.value, cst.SimpleString) for arg in size.args)
        return asks and plain and isinstance(size.func, cst.Attribute) and _is_known(size.func.value, file, location)
    name = dotted(size) or ""
    root = ".".join(name.split(".")[:2])
    if not root.startswith("self.") or file is not location.file:
        return False
    above = set(location.statements_above)
    set_there = [n for n in file.nodes(cst.Assign, cst.AnnAssign) if root in map(dotted, targets(n))]
    return bool(set_there) and all(file.statement(n) in above for n in set_there)


def _index(element: cst.SubscriptElement) -> list[cst.CSTNode]:
    return [element.slice.value] if isinstance(element.slice, cst.Index) else [element.slice]
