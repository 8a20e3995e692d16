"""Changes that a trial makes to parameters in training without its optimizer.

ZeRO keeps copies of parameters and optimizer state that such code does not reach: each of these was measured silently
wrong at stage 1, and is right at stage 0.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.decisions.engine_location import EngineLocation
from ds_migrate.decisions.module_hazards import module_hazard
from ds_migrate.syntax.nodes import code, dotted, last_name, parameters, targets
from ds_migrate.syntax.source import SourceFile
from ds_migrate.trial.gradient_access import clip_code
from ds_migrate.trial.model import Trial
from ds_migrate.trial.rank_dependence import setting_by_rank
from ds_migrate.trial.training_functions import EVALUATION, NO_FORWARD, classes_made, made_of_models, unseen_calls

_TOGGLES = {
    "requires_grad": "requires_grad changes during training",
    "requires_grad_": "requires_grad changes during training",
    "load_state_dict": "load_state_dict is called after the engine is made",
    "add_param_group": "the optimizer gets parameters during training",
    "reset_parameters": "parameters are set anew during training",
    "vector_to_parameters": "parameters are replaced during training",
}


def parameter_hazard(trial: Trial, location: EngineLocation) -> str:
    """Return the first thing that ZeRO's own copies would not see, "" when there is none."""
    clips = clip_code(trial)  # the engine clips: what else a step calls to clip keeps the stage at 0 before this
    models = {name for model in trial.models for name in model.names if name.startswith("self.")}
    optimizers = {name.rpartition(".")[2] for optimizer in trial.optimizers for name in optimizer.names}
    for file, function in (*trial.training_functions, *_inits_above(trial, location), *trial.helper_functions):
        for node in file.nodes(below=function):
            reason = (
                ""
                if node in clips
                else (_hazard(file, node, models, optimizers, function) or _side_effect(file, node, models))
            )
            if reason:
                return f"{reason} ({file.path.name}, line {file.position(node)[0]})"
    changed = module_hazard(trial)
    if changed:
        return changed
    for file, call, attribute in made_of_models(trial):
        if not classes_made(trial, call) and _is_called(trial, attribute):
            line = file.position(call)[0]
            return f"what {attribute} does to the model it is given cannot be seen ({file.path.name}, line {line})"
    unseen = next(unseen_calls(trial), None)
    if unseen is not None:
        file, call = unseen
        line = file.position(call)[0]
        return (
            f"what {dotted(call.func)}() does to the model it is given cannot be seen ({file.path.name}, line {line})"
        )
    return "" if trial.helper_files.are_all_read else "what some imported modules do cannot be seen"


def setting_hazard(trial: Trial) -> str:
    """Return which setting of the optimizer each rank may have its own of: a shard is stepped with its owner's."""
    found = setting_by_rank(trial)
    if found is None:
        return ""
    file, node, reason = found
    return f"{reason} ({file.path.name}, line {file.position(node)[0]})"


def forward_past_engine(trial: Trial) -> str:
    """Return a call of the model's own methods in training: at ZeRO stage 3 its parameters are not there then."""
    models = {name for model in trial.models for name in model.names if name.startswith("self.")}
    for file, function in trial.training_functions:
        for node in file.nodes(cst.Call, below=function):
            owner, _, method = (dotted(node.func) or "").rpartition(".")
            if owner in models and method not in NO_FORWARD:
                line = file.position(node)[0]
                return f"{owner}.{method}() goes past the engine's forward ({file.path.name}, line {line})"
    return ""


def _is_called(trial: Trial, attribute: str) -> bool:
    """Return whether training calls the attribute, or a method of it."""
    return any(
        (name := dotted(node.func) or "") == attribute or name.startswith(f"{attribute}.")
        for file, function in trial.training_functions
        for node in file.nodes(cst.Call, below=function)
    )


def _inits_above(trial: Trial, location: EngineLocation) -> Iterator[tuple[SourceFile, cst.FunctionDef]]:
    """Yield ``__init__`` of classes built on the one whose ``__init__`` makes the engine: they continue after it."""
    inits = [(part.file, init) for part, init in trial.methods("__init__")]
    for file, init in inits:
        if init is location.function or all(other is not location.function for _, other in inits):
            return
        yield file, init


def _hazard(
    file: SourceFile, node: cst.CSTNode, models: set[str], optimizers: set[str], function: cst.FunctionDef
) -> str:
    if isinstance(node, cst.Name) and node.value in _TOGGLES and isinstance(file.parent(node), cst.Call):
        return _TOGGLES[node.value]
    if isinstance(node, cst.Attribute):
        found = _use_of_tensor(file, node, optimizers, function)
        if found and not _is_of_batch(file, node.value, function):
            return found
    if isinstance(node, cst.SimpleString) and node.evaluated_value == "params":
        return "the optimizer's parameters are read from its groups"
    for target in targets(node):
        text = dotted(target) or code(target)
        if isinstance(node, cst.AugAssign) and (_is_below(text, models) or _is_without_gradients(file, node)):
            return "a parameter may be changed in place"
        if ".data" in text or (isinstance(target, cst.Subscript) and _is_below(text, models)):
            return "a parameter may be changed in place"
    return ""


def _use_of_tensor(file: SourceFile, node: cst.Attribute, optimizers: set[str], function: cst.FunctionDef) -> str:
    """Return what an attribute does to a tensor, or reads of an optimizer, that only whole parameters allow."""
    name, around = node.attr.value, file.parent(node)
    if name in _TOGGLES:
        return _TOGGLES[name]
    if name == "state" and isinstance(around, cst.Subscript):
        return "optimizer state is read by the trial"
    if name in ("state", "state_dict") and last_name(node.value) in optimizers:
        return "optimizer state is read by the trial"
    in_place = name.endswith("_") and not name.startswith("_") and not name.endswith("__")
    if in_place and isinstance(around, cst.Call) and around.func is node and function.name.value not in EVALUATION:
        return f"a tensor is changed in place by {name}()"
    return ""


def _is_of_batch(file: SourceFile, node: cst.BaseExpression, function: cst.FunctionDef) -> bool:
    """Return whether an expression is the batch that a method is given, or a part of it: never a parameter."""
    name = _root(node)
    if name is None or "batch" not in {param.name.value for param in parameters(function)}:
        return False
    values = {n: _values(file, n, function) for n in (name, "batch")}
    is_batch = all(given is not None and _root(given) == "batch" for found in values.values() for given in found)
    return is_batch and (name == "batch" or bool(values[name]))


def _values(file: SourceFile, name: str, function: cst.FunctionDef) -> list[cst.BaseExpression | None]:
    """Return what a function binds a local name to, also as an element; None for what is no assignment."""
    assigned = file.nodes(cst.Assign, cst.AnnAssign, cst.AugAssign, below=function)
    found = [node.value for node in assigned if any(_binds(target, name) for target in targets(node))]
    others = [node.target for node in file.nodes(cst.For, cst.CompFor, cst.NamedExpr, below=function)]
    others += [node.name for node in file.nodes(cst.AsName, below=function)]
    return [*found, *(None for target in others if _binds(target, name))]


def _binds(target: cst.BaseExpression, name: str) -> bool:
    if isinstance(target, (cst.Tuple, cst.List)):
        return any(_binds(element.value, name) for element in target.elements)
    return isinstance(target, cst.Name) and target.value == name


def _root(node: cst.BaseExpression) -> str | None:
    """Return the name that an expression of attributes and subscripts begins with."""
    while isinstance(node, (cst.Attribute, cst.Subscript)):
        node = node.value
    return node.value if isinstance(node, cst.Name) else None


def _side_effect(file: SourceFile, node: cst.CSTNode, models: set[str]) -> str:
    """Return a method of the model called for its effect, not for its value: it may freeze or change parameters."""
    if not isinstance(node, cst.Call) or not isinstance(file.parent(node), cst.Expr):
        return ""
    owner, _, method = (dotted(node.func) or "").rpartition(".")
    mine = owner in models or any(owner.startswith(f"{name}.") for name in models)
    return f"{owner}.{method}() may change parameters" if mine and method not in NO_FORWARD else ""


def _is_below(text: str, models: set[str]) -> bool:
    return any(text.startswith(f"{name}.") for name in models) or ".model." in text


def _is_without_gradients(file: SourceFile, node: cst.CSTNode) -> bool:
    """Return whether it is in a ``no_grad`` block of a method that trains."""
    function = file.function(node)
    if function is None or function.name.value in EVALUATION:
        return False
    blocks = [a for a in file.ancestors(node) if isinstance(a, cst.With)]
    return any("no_grad" in code(item.item) for block in blocks for item in block.items)
