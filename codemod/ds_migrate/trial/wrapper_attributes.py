"""Attributes that a trial sets on a wrapped model.

On several ranks PyTorchTrial's model is a DistributedDataParallel that reads its model's attributes. An attribute that
is set stays on the wrapper: ``self.model.drop_path_prob = 0.1`` never reached the forward pass, while
``self.model.layer.p = 0.1`` and ``self.model.module.p = 0.1`` did.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import libcst as cst

from ds_migrate.syntax.nodes import argument, code, dotted, last_name, parameters, targets
from ds_migrate.syntax.source import SourceFile
from ds_migrate.trial.model import Model, Trial
from ds_migrate.trial.references import references

Place: TypeAlias = tuple[SourceFile, cst.CSTNode]
Found: TypeAlias = tuple[SourceFile, cst.CSTNode, str]

# What is meant for the wrapper, and what no module reads.
_WRAPPERS_OWN = frozenset(
    {"module", "require_backward_grad_sync", "require_forward_param_sync", "requires_grad", "find_unused_parameters"}
)


def attributes_on_wrapper(trial: Trial) -> Iterator[Found]:
    """Yield each place that sets an attribute of a wrapped model: its file, the node and ``self.model.p``."""
    seen: set[cst.CSTNode] = set()
    for file, node, shown in wrapped_uses(trial):
        for _, place, text in _set_on(file, node, code(node)):
            if place not in seen:
                seen.add(place)
                yield (*(shown or (file, place)), text)


def wrapped_uses(trial: Trial) -> Iterator[tuple[SourceFile, cst.BaseExpression, Place | None]]:
    """Yield each expression that is a wrapped model, in the trial and in functions of the project that are given it.

    In a file that stays as it is, the last item is where the trial gives the model to the function.
    """
    for model in trial.models:
        for file, node, function in _uses(trial, model):
            if not _is_raw(trial, model, file, node, function):
                yield file, node, None
                for other, inner in given_to(trial, file, node):
                    yield other, inner, (file, node) if other in trial.helper_files else None


def _uses(trial: Trial, model: Model) -> Iterator[tuple[SourceFile, cst.BaseExpression, cst.FunctionDef]]:
    names = {model.target, *(name for name in model.names if name.startswith("self."))}
    for name in names:
        if name.startswith("self.") and "[" not in name:
            yield from references(trial, name)
            continue
        for part, function in trial.methods():
            for node in part.file.nodes(cst.Name, cst.Subscript, below=function):
                if code(node) == name:
                    yield part.file, node, function


def _set_on(file: SourceFile, node: cst.BaseExpression, name: str) -> Iterator[Found]:
    """Yield where the use itself is what gets an attribute."""
    around = file.parent(node)
    if isinstance(around, cst.Attribute) and around.value is node and around.attr.value not in _WRAPPERS_OWN:
        statement = next((a for a in file.ancestors(around) if isinstance(a, cst.BaseSmallStatement)), None)
        if statement is not None and any(around in _elements(target) for target in targets(statement)):
            yield file, around, f"{name}.{around.attr.value}"
    call = file.parent(around) if isinstance(around, cst.Arg) else None
    if isinstance(call, cst.Call) and dotted(call.func) == "setattr" and call.args[0] is around and len(call.args) == 3:
        key = call.args[1].value
        shown = str(key.evaluated_value) if isinstance(key, cst.SimpleString) else ""
        if shown not in _WRAPPERS_OWN:
            yield file, call, f"{name}.{shown}" if shown else f"an attribute of {name}"


def given_to(trial: Trial, file: SourceFile, node: cst.BaseExpression) -> Iterator[tuple[SourceFile, cst.Name]]:
    """Yield the uses of the parameter as which a function of the project is given the model."""
    arg = file.parent(node)
    call = file.parent(arg) if isinstance(arg, cst.Arg) else None
    if not isinstance(call, cst.Call):
        return
    called = last_name(call.func)
    for other in (*trial.files, *trial.helper_files.defining(called)):
        for function in other.nodes(cst.FunctionDef):
            if function.name.value != called:
                continue
            given = parameters(function)
            given = given[1:] if given and given[0].name.value in ("self", "cls") else given
            for index, parameter in enumerate(given):
                if argument(call, index, parameter.name.value) is arg:
                    for inner in other.nodes(cst.Name, below=function.body):
                        if inner.value == parameter.name.value:
                            yield other, inner


def _elements(target: cst.BaseExpression) -> list[cst.BaseExpression]:
    if isinstance(target, (cst.Tuple, cst.List)):
        return [inner for element in target.elements for inner in _elements(element.value)]
    return [target]


def _is_raw(trial: Trial, model: Model, file: SourceFile, node: cst.BaseExpression, function: cst.FunctionDef) -> bool:
    """Return whether the model is not wrapped yet where the node stands."""
    for wrap in model.wraps:
        around = wrap.file.function(wrap.call)
        if around is function:
            return file.position(node) < file.position(wrap.call)
        if around is not None and function.name.value != "__init__":
            calls = [
                call
                for call in wrap.file.nodes(cst.Call, below=around)
                if dotted(call.func) in (f"self.{function.name.value}", function.name.value)
            ]
            named = sum(len(f.attributes_by_name.get(function.name.value, ())) for f in trial.files)
            elsewhere = named > len(calls)
            if calls and not elsewhere:
                return all(wrap.file.position(call) < wrap.file.position(wrap.call) for call in calls)
    return False
