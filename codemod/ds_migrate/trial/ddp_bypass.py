"""Forwards that bypass the wrapper that PyTorchTrial put around a model on several ranks.

DistributedDataParallel averages gradients only where its own forward ran. ``self.model.loss(x)`` and
``self.model.encoder(x)`` reach the module inside, so that each rank kept its own gradients and the ranks drifted apart;
an engine averages in its backward, whatever ran forward.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.syntax.nodes import dotted, last_name, parameters, targets
from ds_migrate.syntax.source import SourceFile
from ds_migrate.trial.model import Model, Trial
from ds_migrate.trial.training_functions import EVALUATION, NO_FORWARD
from ds_migrate.trial.wrapper_attributes import given_to


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
                passed = _calls_by_callee(trial, file, node)
                if passed is None:
                    return None
                found += passed
            if called and isinstance(around, cst.Call) and outer.attr.value not in NO_FORWARD:
                found.append((file, around))
    return found


def _calls_by_callee(trial: Trial, file: SourceFile, node: cst.Attribute) -> list[tuple[SourceFile, cst.Call]] | None:
    """Return the call that passes the model to a function of the project which only calls what is inside of it.

    None where that function calls the model itself, passes it on, or is not known.
    """
    arg = file.parent(node)
    call = file.parent(arg) if isinstance(arg, cst.Arg) else None
    uses = list(given_to(trial, file, node))
    inside = False
    for other, name in uses:
        outer: cst.CSTNode = name
        around = other.parent(name)
        while isinstance(around, cst.Attribute) and around.value is outer:
            outer, around = around, other.parent(around)
        if outer is name:
            return None
        is_call = isinstance(around, cst.Call) and around.func is outer
        inside = inside or (is_call and isinstance(outer, cst.Attribute) and outer.attr.value not in NO_FORWARD)
    if not uses or not isinstance(call, cst.Call):
        return None
    return [(file, call)] if inside else []


def thawed_late(trial: Trial) -> tuple[SourceFile, cst.CSTNode] | None:
    """Return where training lets parameters learn that the set-up froze; None where it does not do both to one model.

    DistributedDataParallel averages only what required gradients when it was made.
    """
    runs = {function for _, function in trial.training_functions}
    frozen: set[str] = set()
    thawed: list[tuple[SourceFile, cst.CSTNode, set[str]]] = []
    for file in trial.files:
        for node in file.nodes(cst.Call, cst.Assign):
            value = _requires_grad(node)
            if value is None:
                continue
            function = file.function(node)
            if isinstance(value, cst.Name) and value.value == "False":
                frozen |= _owners(trial, file, node) if function not in runs else set()
            elif function in runs or (function is not None and function.name.value != "__init__"):
                thawed.append((file, node, _owners(trial, file, node)))
    return next(
        ((file, node) for file, node, owners in thawed if any(_may_share(trial, frozen, o) for o in owners)), None
    )


def _owners(trial: Trial, file: SourceFile, node: cst.CSTNode) -> set[str]:
    """Return the dotted names whose parameters an assignment or call is about; none for a tensor that the function
    makes itself, or is given and no model is passed for."""
    receiver = node.func if isinstance(node, cst.Call) else next(iter(targets(node)), None)
    owner = receiver.value if isinstance(receiver, cst.Attribute) else None
    function = file.function(node)
    while isinstance(owner, (cst.Attribute, cst.Subscript)) and dotted(owner) is None:
        owner = owner.value
    name = dotted(owner) if owner is not None else None
    if name is None:  # what an expression makes: a tensor, unless it is taken from a model
        return {n for n in _names_in(owner) if n.startswith("self.")} if isinstance(owner, cst.Call) else set()
    loops = [a for a in file.ancestors(node) if isinstance(a, cst.For) and name in _names_in(a.target)]
    if loops:
        return _names_in(loops[0].iter) - {"itertools", "self"}
    if name.startswith("self.") or function is None:
        return {name}
    given = [p.name.value for p in parameters(function)]
    if name not in given:
        values = file.values_of({name}, function)
        return {n for value in values for n in _names_in(value) if _model_of(trial, n) is not None}
    calls = [
        call for each in trial.files for call in each.nodes(cst.Call) if last_name(call.func) == function.name.value
    ]
    passed = {n for call in calls for arg in call.args for n in _names_in(arg.value)}
    return {n for n in passed if _model_of(trial, n) is not None}


def _names_in(node: cst.CSTNode | None) -> set[str]:
    """Return the dotted names in an expression, without the methods that are called on them."""
    found: set[str] = set()
    stack = [node] if node is not None else []
    while stack:
        part = stack.pop()
        name = dotted(part)
        if isinstance(part, cst.Call) and isinstance(part.func, cst.Attribute):
            stack += [part.func.value, *(arg.value for arg in part.args)]
        elif name is not None:
            found.add(name)
        else:
            stack += part.children
    return found


def _model_of(trial: Trial, name: str) -> Model | None:
    """Return the wrapped model that a name is, or is below of."""
    return next((m for m in trial.models if any(name == n or name.startswith(f"{n}.") for n in m.names)), None)


def _may_share(trial: Trial, frozen: set[str], thawed: str) -> bool:
    """Return whether what was frozen may be a part of what is thawed: of the same model, or of none that is known."""
    model = _model_of(trial, thawed)
    for name in frozen:
        other = _model_of(trial, name)
        if other is None and any(_is_copy(file, value) for file in trial.files for value in _values(file, name)):
            continue  # a teacher or an average: its parameters are not the model's
        if other is None or model is None or other is model:
            return True
    return False


def _values(file: SourceFile, name: str) -> list[cst.BaseExpression]:
    return file.values_of({name}, file.module)


def _is_copy(file: SourceFile, value: cst.BaseExpression) -> bool:
    return isinstance(value, cst.Call) and (file.names.qualified(value.func) or "").startswith("copy.")


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
