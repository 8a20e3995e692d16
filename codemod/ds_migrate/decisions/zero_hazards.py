"""What a trial does to parameters and gradients behind the optimizer's back, in training.

ZeRO keeps copies of parameters and optimizer state that such code does not reach: each of these was measured silently
wrong at stage 1, and is right at stage 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from ds_migrate.syntax.nodes import code, dotted, parameters, targets, walk
from ds_migrate.syntax.source import SourceFile
from ds_migrate.trial.model import Trial

_GRADIENT_CLIPS = ("clip_grad_norm_", "clip_grad_norm", "clip_grad_value_")
_TOGGLES = {
    "requires_grad": "requires_grad changes during training",
    "requires_grad_": "requires_grad changes during training",
    "load_state_dict": "load_state_dict is called after the engine is made",
    "add_param_group": "the optimizer gets parameters during training",
    "reset_parameters": "parameters are set anew during training",
    "vector_to_parameters": "parameters are replaced during training",
}
_HOOKS = frozenset({"register_hook", "register_full_backward_hook", "register_full_backward_pre_hook"})
EVALUATION = ("evaluate_batch", "evaluate_full_dataset")
_SET_UP = ("__init__", "build_training_data_loader", "build_validation_data_loader")


def handles_gradients(trial: Trial) -> bool:
    """Whether the trial reads or changes gradients itself, between backward and step."""
    given = _clips(trial)
    clip_functions = {dotted(node) for node in given}
    for file, function in running(trial):
        if f"self.{function.name.value}" in clip_functions:
            continue
        for node in file.nodes(cst.Attribute, cst.Call, below=function):
            if node in given:
                continue
            name = file.names.qualified(node.func if isinstance(node, cst.Call) else node) or ""
            if isinstance(node, cst.Attribute) and node.attr.value == "grad" and not name.startswith("torch."):
                return True
            if isinstance(node, cst.Call) and name.rpartition(".")[2] in _GRADIENT_CLIPS:
                return True
    return False


def hooks_gradients(trial: Trial) -> bool:
    """Whether hooks of the trial see gradients while they flow back."""
    return any(
        isinstance(node, cst.Attribute) and node.attr.value in _HOOKS
        for file in trial.files
        for node in file.nodes(cst.Attribute)
    )


def differentiates(trial: Trial) -> bool:
    """Whether the trial asks autograd itself: DeepSpeed refuses that on what came out of an engine's forward."""
    return any(
        (file.names.qualified(node.func) or "").startswith(("torch.autograd.grad", "torch.autograd.functional."))
        for file, function in running(trial)
        for node in file.nodes(cst.Call, below=function)
    )


def parameter_hazard(trial: Trial) -> str:
    """The first thing that ZeRO's own copies would not see, "" when there is none."""
    given = _clips(trial)
    models = {name for model in trial.models for name in model.names if name.startswith("self.")}
    optimizers = {name.rpartition(".")[2] for optimizer in trial.optimizers for name in optimizer.names}
    for file, function in (*running(trial), *_inits_above(trial)):
        for node in file.nodes(below=function):
            reason = (
                ""
                if node in given
                else (_hazard(file, node, models, optimizers, function) or _side_effect(file, node, models))
            )
            if reason:
                return f"{reason} ({file.path.name}, line {file.position(node)[0]})"
    for file, call, attribute in _given_models(trial):
        if not _class_of(trial, call) and _calls(trial, attribute):
            line = file.position(call)[0]
            return f"what {attribute} does to the model it is given cannot be seen ({file.path.name}, line {line})"
    return ""


def _given_models(trial: Trial) -> Iterator[tuple[SourceFile, cst.Call, str]]:
    """What ``__init__`` makes of a model or its parameters and keeps on the trial: the call, and the attribute."""
    models = {name for model in trial.models for name in model.names}
    owned = models | {name for optimizer in trial.optimizers for name in optimizer.names}
    schedules = {wrap.target for wrap in trial.schedulers}
    wraps = {w.call for m in trial.models for w in m.wraps} | {w.call for o in trial.optimizers for w in o.wraps}
    for part, init in trial.methods("__init__"):
        for assign in part.file.nodes(cst.Assign, cst.AnnAssign, below=init):
            attribute = next((n for t in targets(assign) if (n := dotted(t) or "").startswith("self.")), "")
            call = assign.value
            if not isinstance(call, cst.Call) or call in wraps or not attribute or attribute in owned | schedules:
                continue
            if (part.file.names.qualified(call.func) or "").startswith(("torch.", "copy.")):
                continue
            given = {name for arg in call.args for node in walk(arg.value) if (name := dotted(node)) is not None}
            if given & models:
                yield part.file, call, attribute


def _class_of(trial: Trial, call: cst.Call) -> list[tuple[SourceFile, cst.ClassDef]]:
    """The class in the trial's files that a call makes an object of."""
    name = (dotted(call.func) or "").rpartition(".")[2]
    return [(file, node) for file in trial.files for node in file.nodes(cst.ClassDef) if node.name.value == name]


def _calls(trial: Trial, attribute: str) -> bool:
    """Whether training calls the attribute, or a method of it."""
    return any(
        (name := dotted(node.func) or "") == attribute or name.startswith(f"{attribute}.")
        for file, function in running(trial)
        for node in file.nodes(cst.Call, below=function)
    )


def _inits_above(trial: Trial) -> Iterator[tuple[SourceFile, cst.FunctionDef]]:
    """``__init__`` of classes built on the one whose ``__init__`` makes the engine: they go on when it is made."""
    inits = [(part.file, init) for part, init in trial.methods("__init__")]
    for file, init in inits:
        if trial.place is None or init is trial.place.function or all(i is not trial.place.function for _, i in inits):
            return
        yield file, init


NO_FORWARD = frozenset(
    [
        "train",
        "eval",
        "zero_grad",
        "parameters",
        "named_parameters",
        "modules",
        "children",
        "backward",
        "step",
        "state_dict",
        "to",
        "cuda",
    ]
)


def forward_past_engine(trial: Trial) -> str:
    """A call of the model's own methods in training: at ZeRO stage 3 its parameters are not there then."""
    models = {name for model in trial.models for name in model.names if name.startswith("self.")}
    for file, function in running(trial):
        for node in file.nodes(cst.Call, below=function):
            owner, _, method = (dotted(node.func) or "").rpartition(".")
            if owner in models and method not in NO_FORWARD:
                line = file.position(node)[0]
                return f"{owner}.{method}() goes past the engine's forward ({file.path.name}, line {line})"
    return ""


def _hazard(
    file: SourceFile, node: cst.CSTNode, models: set[str], optimizers: set[str], function: cst.FunctionDef
) -> str:
    if isinstance(node, cst.Name) and node.value in _TOGGLES and isinstance(file.parent(node), cst.Call):
        return _TOGGLES[node.value]
    if isinstance(node, cst.Attribute):
        name = node.attr.value
        around = file.parent(node)
        if name in _TOGGLES:
            return _TOGGLES[name]
        if name == "state" and isinstance(around, cst.Subscript):
            return "optimizer state is read by the trial"
        if name in ("state", "state_dict") and (dotted(node.value) or "").rpartition(".")[2] in optimizers:
            return "optimizer state is read by the trial"
        in_place = name.endswith("_") and not name.startswith("_") and not name.endswith("__")
        if in_place and isinstance(around, cst.Call) and around.func is node and function.name.value not in EVALUATION:
            return f"a tensor is changed in place by {name}()"
    if isinstance(node, cst.SimpleString) and node.evaluated_value == "params":
        return "the optimizer's parameters are read from its groups"
    for target in targets(node):
        text = dotted(target) or code(target)
        if isinstance(node, cst.AugAssign) and (_below(text, models) or _without_gradients(file, node)):
            return "a parameter may be changed in place"
        if ".data" in text or (isinstance(target, cst.Subscript) and _below(text, models)):
            return "a parameter may be changed in place"
    return ""


def _side_effect(file: SourceFile, node: cst.CSTNode, models: set[str]) -> str:
    """A method of the model called for what it does, not for what it returns: it may freeze or change parameters."""
    if not isinstance(node, cst.Call) or not isinstance(file.parent(node), cst.Expr):
        return ""
    owner, _, method = (dotted(node.func) or "").rpartition(".")
    mine = owner in models or any(owner.startswith(f"{name}.") for name in models)
    return f"{owner}.{method}() may change parameters" if mine and method not in NO_FORWARD else ""


def _below(text: str, models: set[str]) -> bool:
    return any(text.startswith(f"{name}.") for name in models) or ".model." in text


def _without_gradients(file: SourceFile, node: cst.CSTNode) -> bool:
    """Whether it stands in a ``no_grad`` block of a method that trains."""
    function = file.function(node)
    if function is None or function.name.value in EVALUATION:
        return False
    blocks = [a for a in file.ancestors(node) if isinstance(a, cst.With)]
    return any("no_grad" in code(item.item) for block in blocks for item in block.items)


def running(trial: Trial) -> Sequence[tuple[SourceFile, cst.FunctionDef]]:
    """Functions that run while training goes on: the trial's methods, callbacks, and what is given the trial, a model
    or an optimizer by those."""
    if trial.running is None:
        trial.running = list(_running(trial))
    return trial.running


def _running(trial: Trial) -> Iterator[tuple[SourceFile, cst.FunctionDef]]:
    seen: set[cst.FunctionDef] = set()
    queue: list[tuple[SourceFile, cst.FunctionDef]] = [
        (part.file, function) for part, function in trial.methods() if function.name.value not in _SET_UP
    ]
    files = dict.fromkeys([*(part.file for part in trial.parts), *trial.files])
    functions: dict[str, list[tuple[SourceFile, cst.FunctionDef]]] = {}
    for file in files:
        for statement in file.module.body:
            if isinstance(statement, cst.FunctionDef):
                functions.setdefault(statement.name.value, []).append((file, statement))
            elif isinstance(statement, cst.ClassDef) and not _is_module(file, statement):
                methods = [s for s in statement.body.body if isinstance(s, cst.FunctionDef)]
                if any("Callback" in code(base.value) for base in statement.bases):
                    queue += [(file, m) for m in methods if m.name.value != "__init__"]
                for method in methods:
                    if statement not in {part.node for part in trial.parts}:
                        functions.setdefault(method.name.value, []).append((file, method))
    for _, call, _ in _given_models(trial):
        for file, made in _class_of(trial, call):
            if not _is_module(file, made):
                methods = [s for s in made.body.body if isinstance(s, cst.FunctionDef)]
                queue += [(file, method) for method in methods if method.name.value != "__init__"]
    owned = {n for m in trial.models for n in m.names} | {n for o in trial.optimizers for n in o.names}
    clips = _clips(trial)  # called where step_optimizer called them, between reduction and step
    while queue:
        file, function = queue.pop(0)
        if function in seen:
            continue
        seen.add(function)
        yield file, function
        for node in file.nodes(cst.Call, below=function):
            if node not in clips and any(_is_owned(arg, owned) for arg in node.args):
                called = (dotted(node.func) or "").rpartition(".")[2]
                queue += [f for f in functions.get(called, []) if len(parameters(f[1])) > 0]


def _clips(trial: Trial) -> set[cst.CSTNode]:
    """Everything inside of what ``step_optimizer`` is given to clip with."""
    return {node for step in trial.steps if step.clip is not None for node in walk(step.clip)}


def _is_owned(arg: cst.Arg, owned: set[str]) -> bool:
    """Whether the argument is the trial, something it holds, or one of its models or optimizers."""
    name = dotted(arg.value) or ""
    return name == "self" or name.startswith("self.") or name in owned


def _is_module(file: SourceFile, node: cst.ClassDef) -> bool:
    """Whether the class is a torch module: what it does to itself it does in every form of training."""
    return any((file.names.qualified(base.value) or "").rpartition(".")[2].endswith("Module") for base in node.bases)
