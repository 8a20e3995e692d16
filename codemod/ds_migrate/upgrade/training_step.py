"""``train_batch`` and the evaluation methods: the model is the trial's own, and the trial calls backward and step."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from ds_migrate.upgrade.family import OldClass
from ds_migrate.upgrade.functions import (
    docstring,
    is_bound_inside,
    local_names,
    names,
    parameter,
    receiver,
    returns,
)
from ds_migrate.upgrade.problem import UpgradeError

SPLIT = "_train_batch_metrics"
_GIVEN = {
    "train_batch": ("batch", "model", "epoch_idx", "batch_idx"),
    "evaluate_batch": ("batch", "model"),
    "evaluate_full_dataset": ("data_loader", "model"),
}
_DICTS = {"Dict", "dict", "Mapping", "TrainingMetrics"}


@dataclass(frozen=True)
class StepNames:
    """The trial's names: its attributes, and the function that clips, as source, or ""."""

    context: str
    model: str
    optimizer: str
    clip: str = ""


def upgrade_methods(cls: OldClass, step: StepNames) -> None:
    """Rewrite the methods that take a batch.

    Raises:
        UpgradeError: a method cannot be rewritten.
    """
    for name, given in _GIVEN.items():
        method = cls.methods.get(name)
        if method is not None:
            _check_signature(cls, method, given)
            if name == "train_batch":
                _train_batch(cls, method, step)
            else:
                _without_model(cls, method, step.model)


def _check_signature(cls: OldClass, method: ast.FunctionDef, given: tuple[str, ...]) -> None:
    arguments = method.args
    positional = [*arguments.posonlyargs, *arguments.args]
    optional = {arg.arg for arg in positional[len(positional) - len(arguments.defaults) :]}
    optional |= {arg.arg for arg, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if default}
    for arg in [*positional[1:], *arguments.kwonlyargs]:
        if arg.arg not in given and arg.arg not in optional:
            raise UpgradeError(
                arg,
                f"{cls.name}.{method.name} has a parameter {arg.arg}, which the API before 0.13 never gave",
                f"write {method.name}(self, {', '.join(given)})",
            )
    for node in ast.walk(method):
        if _is_super_call(node, method.name):
            raise UpgradeError(
                node,
                f"{cls.name}.{method.name} calls the one of its base class, which would train the batch itself",
                "move what both share into a method of another name, and call that",
            )


def _is_super_call(node: ast.AST, method: str) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == method
        and isinstance(node.func.value, ast.Call)
        and isinstance(node.func.value.func, ast.Name)
        and node.func.value.func.id == "super"
    )


def _without_model(cls: OldClass, method: ast.FunctionDef, attribute: str) -> None:
    """Take the parameter ``model`` from a method, whose body reads the trial's own model instead."""
    given = parameter(method, "model")
    if given is None:
        return
    edits = cls.edits
    positional = _positional(method)
    if given not in positional or method.args.defaults:
        raise UpgradeError(
            given, f"{cls.name}.{method.name} takes model in an unusual way", "write model as a plain parameter"
        )  # fmt: skip
    index = positional.index(given)
    if index + 1 < len(positional):
        edits.replace(edits.start(given), edits.start(positional[index + 1]), "")
    else:
        edits.replace(edits.end(positional[index - 1]), edits.end(given), "")
    me = f"{receiver(method)}.{attribute}"
    uses = [n for s in method.body for n in ast.walk(s) if isinstance(n, ast.Name) and n.id == "model"]
    if is_bound_inside(method, "model") or any(_in_text(cls, n) for n in uses):
        _insert_first(cls, method, [f"model = {me}"])
    else:
        for use in uses:
            edits.replace_node(use, me)


def _positional(method: ast.FunctionDef) -> list[ast.arg]:
    return [*method.args.posonlyargs, *method.args.args]


def _in_text(cls: OldClass, node: ast.AST) -> bool:
    """Return whether a node is inside an f-string, where Python before 3.12 does not give its place."""
    parent = cls.edits.parents.get(node)
    while parent is not None and not isinstance(parent, ast.stmt):
        if isinstance(parent, ast.JoinedStr):
            return True
        parent = cls.edits.parents.get(parent)
    return False


def _insert_first(cls: OldClass, method: ast.FunctionDef, lines: list[str]) -> None:
    text = docstring(method)
    if text is None:
        cls.edits.insert_before(method.body[0], lines)
    else:
        cls.edits.insert_after(text, lines)


def _train_batch(cls: OldClass, method: ast.FunctionDef, step: StepNames) -> None:
    if parameter(method, "model") is None and method.args.kwarg is None:
        raise UpgradeError(
            method, f"{cls.name}.train_batch takes no model, which the API before 0.13 gives it",
            "write train_batch(self, batch, model, epoch_idx, batch_idx), or wrap model and optimizer in __init__",
        )  # fmt: skip
    found = returns(method)
    last = method.body[-1]
    if len(found) == 1 and found[0] is last and found[0].value is not None and cls.edits.begins_line(last):
        _without_model(cls, method, step.model)
        _step_before_return(cls, method, found[0], step)
    elif found and parameter(method, "model") is not None:
        _split(cls, method, step)
    else:
        raise UpgradeError(
            method, f"{cls.name}.train_batch returns no loss", 'end train_batch with return {"loss": loss}'
        )  # fmt: skip


def _step_before_return(cls: OldClass, method: ast.FunctionDef, last: ast.Return, step: StepNames) -> None:
    value = last.value
    assert value is not None
    me = receiver(method)
    loss = _loss_in(value)
    if isinstance(loss, ast.Name) and isinstance(value, ast.Dict) and _is_settled(value, {me, "model"}):
        cls.edits.insert_before(last, step_lines(me, step, loss.id))
        return
    if isinstance(value, ast.Name):
        metrics = value.id
        is_dict = _is_dict(method, metrics)
    else:
        metrics = next(name for name in ("metrics", "train_metrics", "metrics_") if name not in local_names(method))
        is_dict = True if loss is not None else _annotated_as_dict(method)
    taken = local_names(method) | names(method)
    chosen, lines = _loss_of(metrics, is_dict, next(n for n in ("loss", "loss_", "batch_loss") if n not in taken))
    chosen = loss.id if isinstance(loss, ast.Name) else chosen
    lines += step_lines(me, step, chosen)
    if not isinstance(value, ast.Name):
        cls.edits.replace(cls.edits.start(last), cls.edits.start(value), f"{metrics} = ")
        lines.append(f"return {metrics}")
        cls.edits.insert_after(last, lines)
    else:
        cls.edits.insert_before(last, lines)


def _loss_of(metrics: str, is_dict: bool | None, fresh: str) -> tuple[str, list[str]]:
    """Return the loss of a result of ``train_batch``, as source, and the lines that compute it."""
    if is_dict:
        return f'{metrics}["loss"]', []
    if is_dict is False:
        return metrics, []
    return fresh, [f'{fresh} = {metrics}["loss"] if isinstance({metrics}, dict) else {metrics}']


def step_lines(me: str, step: StepNames, loss: str) -> list[str]:
    """Return the lines that train on a loss."""
    context = f"{me}.{step.context}"
    if not step.clip:
        return [f"{context}.backward({loss})", f"{context}.step_optimizer({me}.{step.optimizer})"]
    return [
        f"{context}.backward({loss})",
        f"{context}.step_optimizer(",
        f"    {me}.{step.optimizer},",
        f"    clip_grads={step.clip},",
        ")",
    ]


def _loss_in(value: ast.expr) -> ast.expr | None:
    """Return the value of "loss" in a dict that is written out."""
    if not isinstance(value, ast.Dict):
        return None
    found = None
    for key, item in zip(value.keys, value.values, strict=True):
        if key is None:
            found = None
        elif isinstance(key, ast.Constant) and key.value == "loss":
            found = item
    return found


def _is_settled(value: ast.Dict, moving: set[str]) -> bool:
    """Return whether the metrics are the same before and after the step: they are computed from local names alone."""
    for node in (n for item in value.values for n in ast.walk(item)):
        if isinstance(node, ast.Name) and node.id in moving:
            return False
        if isinstance(node, ast.Call) and (node.args or node.keywords or not isinstance(node.func, ast.Attribute)):
            return False
    return None not in value.keys


def _is_dict(method: ast.FunctionDef, name: str) -> bool | None:
    """Return whether a local name is a dict where the method ends; None when that cannot be seen."""
    values = []
    for node in ast.walk(method):
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                values.append(node.value)
    kinds = {_kind(value) for value in values} - {None}
    return kinds.pop() if len(kinds) == 1 else _annotated_as_dict(method)


def _kind(value: ast.expr | None) -> bool | None:
    if isinstance(value, (ast.Dict, ast.DictComp)):
        return True
    return True if isinstance(value, ast.Call) and ast.unparse(value.func) == "dict" else None


def _annotated_as_dict(method: ast.FunctionDef) -> bool | None:
    annotation = method.returns
    annotation = annotation.value if isinstance(annotation, ast.Subscript) else annotation
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return True if annotation.value.split("[")[0] in _DICTS else None
    name = getattr(annotation, "id", getattr(annotation, "attr", ""))
    if name == "Tensor":
        return False
    return True if name in _DICTS else None


def _split(cls: OldClass, method: ast.FunctionDef, step: StepNames) -> None:
    """Keep the body as a method of another name, and train on the loss that it returns."""
    edits = cls.edits
    if method.decorator_list:
        raise UpgradeError(
            method, f"{cls.name}.train_batch is decorated and returns in several places", "return at its end only"
        )
    start = edits.text.index(method.name, edits.offset(method.lineno, method.col_offset))
    edits.replace(start, start + len(method.name), SPLIT)
    given = ", ".join(_typed(cls, parameter(method, name), name) for name in ("batch", "epoch_idx", "batch_idx"))
    result = "" if method.returns is None else f" -> {edits.source(method.returns)}"
    me = receiver(method)
    asked = [arg.arg for arg in _positional(method)[1:]]
    passed = ", ".join(f"{arg}={me}.{step.model}" if arg == "model" else f"{arg}={arg}" for arg in asked)
    loss, lines = _loss_of("metrics", _annotated_as_dict(method), "loss")
    unit = _unit(cls, method)
    body = [f"metrics = {me}.{SPLIT}({passed})", *lines, *step_lines(me, step, loss), "return metrics"]
    edits.insert_before(
        method, [f"def train_batch({me}, {given}){result}:", *(f"{unit}{line}" for line in body), ""]
    )  # fmt: skip


def _unit(cls: OldClass, method: ast.FunctionDef) -> str:
    """Return one level of indentation."""
    outer, inner = cls.edits.indent(method), cls.edits.indent(method.body[0])
    return inner[len(outer) :] if not inner.strip() and len(inner) > len(outer) else "    "


def _typed(cls: OldClass, arg: ast.arg | None, name: str) -> str:
    return name if arg is None or arg.annotation is None else f"{name}: {cls.edits.source(arg.annotation)}"
