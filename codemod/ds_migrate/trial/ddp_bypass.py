"""Forwards that bypass the wrapper that PyTorchTrial put around a model on several ranks.

DistributedDataParallel averages gradients only where its own forward ran. ``self.model.loss(x)`` and
``self.model.encoder(x)`` reach the module inside, so that each rank kept its own gradients and the ranks drifted apart;
an engine averages in its backward, whatever ran forward.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.syntax.nodes import dotted
from ds_migrate.syntax.source import SourceFile
from ds_migrate.trial.model import Model, Trial
from ds_migrate.trial.training_functions import EVALUATION, NO_FORWARD


def never_averaged(trial: Trial) -> Iterator[tuple[SourceFile, cst.Call, str]]:
    """Yield one call for each trained model that is only ever run past its wrapper: its file, it, and how it is called.

    Models that are also called themselves, or are passed to code that may call them, are left out.
    """
    trained = {model for optimizer in trial.optimizers for model in optimizer.models}
    for model in trial.models:
        calls = _calls(trial, model) if model in trained else None
        if calls:
            file, call = calls[0]
            yield file, call, f"{dotted(call.func)}()"


def _calls(trial: Trial, model: Model) -> list[tuple[SourceFile, cst.Call]] | None:
    """Return calls of what is inside of the model; None where it is called itself, or its use cannot be followed."""
    names = {name for name in model.names if name.startswith("self.")}
    found: list[tuple[SourceFile, cst.Call]] = []
    for file, function in trial.training_functions:
        if function.name.value in EVALUATION:
            continue
        for node in file.nodes(cst.Attribute, below=function):
            if dotted(node) not in names:
                continue
            outer, around = node, file.parent(node)
            while isinstance(around, cst.Attribute) and around.value is outer:
                outer, around = around, file.parent(around)
            called = isinstance(around, cst.Call) and around.func is outer
            if outer is node:
                return None
            if called and isinstance(around, cst.Call) and outer.attr.value not in NO_FORWARD:
                found.append((file, around))
    return found


def thawed_late(trial: Trial) -> tuple[SourceFile, cst.CSTNode] | None:
    """Return where training lets parameters learn that the set-up froze; None where it does not do both.

    DistributedDataParallel averages only what required gradients when it was made.
    """
    runs = {function for _, function in trial.training_functions}
    frozen, thawed = False, None
    for file in trial.files:
        for node in file.nodes(cst.Call, cst.Assign):
            value = _requires_grad(node)
            if value is None:
                continue
            function = file.function(node)
            if isinstance(value, cst.Name) and value.value == "False":
                frozen |= function not in runs
            elif function in runs or (function is not None and function.name.value != "__init__"):
                thawed = thawed or (file, node)
    return thawed if frozen else None


def _requires_grad(node: cst.CSTNode) -> cst.BaseExpression | None:
    """Return what requires_grad becomes: the argument of ``requires_grad_()`` or the assigned value; else None."""
    if isinstance(node, cst.Call):
        if not isinstance(node.func, cst.Attribute) or node.func.attr.value != "requires_grad_":
            return None
        return node.args[0].value if node.args else cst.Name("True")
    if isinstance(node, cst.Assign):
        targets = [target.target for target in node.targets]
        toggles = any(isinstance(target, cst.Attribute) and target.attr.value == "requires_grad" for target in targets)
        return node.value if toggles else None
    return None
