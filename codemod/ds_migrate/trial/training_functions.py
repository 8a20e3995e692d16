"""The functions that run while a trial trains: its methods, its callbacks, and what those give the trial's objects."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.syntax.nodes import code, dotted, last_name, parameters, targets, walk
from ds_migrate.syntax.source import SourceFile
from ds_migrate.trial.model import Trial
from ds_migrate.trial.stand_ins import stand_in_classes

EVALUATION = ("evaluate_batch", "evaluate_full_dataset")
_SET_UP = ("__init__", "build_training_data_loader", "build_validation_data_loader")
# Methods of a model that run no forward pass and change no parameter.
NO_FORWARD = frozenset(
    [
        "train", "eval", "zero_grad", "parameters", "named_parameters", "modules", "children", "backward", "step",
        "state_dict", "to", "cuda",
    ]
)  # fmt: skip
# Packages whose functions leave the parameters of a model that they are given alone; what torch changes is known.
_HARMLESS = frozenset(
    [
        "contextlib", "copy", "deepspeed", "determined", "functools", "itertools", "json", "logging", "math",
        "mlflow", "numpy", "os", "pathlib", "pickle", "time", "torch", "torchinfo", "torchsummary", "trial_runtime",
        "typing", "wandb",
    ]
)  # fmt: skip


def functions_in_training(trial: Trial) -> Iterator[tuple[SourceFile, cst.FunctionDef]]:
    """Yield functions that run during training, with their files: the trial's methods, callbacks, and what those
    give the trial, a model or an optimizer. Needs everything else of the trial."""
    seen: set[cst.FunctionDef] = set()
    queue: list[tuple[SourceFile, cst.FunctionDef]] = [
        (part.file, function) for part, function in trial.methods() if function.name.value not in _SET_UP
    ]
    own = {function for _, function in trial.methods()}
    parts = {part.node for part in trial.parts}
    functions: dict[str, list[tuple[SourceFile, cst.FunctionDef]]] = {}
    known: set[SourceFile] = set()

    def add(file: SourceFile) -> None:
        known.add(file)
        stand_ins = stand_in_classes([file]).values()
        for statement in file.statements:
            if isinstance(statement, cst.FunctionDef):
                functions.setdefault(statement.name.value, []).append((file, statement))
            elif isinstance(statement, cst.ClassDef) and not _is_module(file, statement):
                methods = [s for s in statement.body.body if isinstance(s, cst.FunctionDef)]
                if any("Callback" in code(base.value) for base in statement.bases):
                    queue.extend((file, m) for m in methods if m.name.value != "__init__")
                if statement not in parts and statement not in stand_ins:
                    for method in methods:
                        functions.setdefault(method.name.value, []).append((file, method))

    for file in dict.fromkeys([*(part.file for part in trial.parts), *trial.files]):
        add(file)
    for _, call, _ in made_of_models(trial):
        for file, made in classes_made(trial, call):
            if not _is_module(file, made):
                methods = [s for s in made.body.body if isinstance(s, cst.FunctionDef)]
                queue += [(file, method) for method in methods if method.name.value != "__init__"]
    clips = clip_nodes(trial)  # called where step_optimizer called them, between reduction and step
    names = trial.names
    while queue:
        file, function = queue.pop(0)
        if function in seen:
            continue
        seen.add(function)
        yield file, function
        given = names if function in own else names.union(p.name.value for p in parameters(function))
        for node in file.nodes(cst.Call, below=function):
            if node not in clips and any(_is_owned(arg, given) for arg in node.args):
                called = node.func.attr if isinstance(node.func, cst.Attribute) else node.func
                name = called.value if isinstance(called, cst.Name) else ""
                for other in trial.helper_files.defining(name):
                    if other not in known:
                        add(other)
                queue += [f for f in functions.get(name, []) if len(parameters(f[1])) > 0]


def made_of_models(trial: Trial) -> Iterator[tuple[SourceFile, cst.Call, str]]:
    """Yield what ``__init__`` makes of a model or its parameters and keeps: the call, and the trial's attribute."""
    models = {name for model in trial.models for name in model.names}
    known = {*trial.names, *(wrap.target for wrap in trial.schedulers)}
    wraps = {wrap.call for wrap in trial.wraps}
    for part, init in trial.methods("__init__"):
        for assign in part.file.nodes(cst.Assign, cst.AnnAssign, below=init):
            attribute = next((n for t in targets(assign) if (n := dotted(t) or "").startswith("self.")), "")
            call = assign.value
            if not isinstance(call, cst.Call) or call in wraps or not attribute or attribute in known:
                continue
            if (part.file.names.qualified(call.func) or "").startswith(("torch.", "copy.")):
                continue
            given = {name for arg in call.args for node in walk(arg.value) if (name := dotted(node)) is not None}
            if given & models:
                yield part.file, call, attribute


def unseen_calls(trial: Trial) -> Iterator[tuple[SourceFile, cst.Call]]:
    """Yield calls in training of functions from installed packages that are given a model or its parameters."""
    names = frozenset(name for model in trial.models for name in model.names if name.startswith("self."))
    for file, function in trial.training_functions:
        if function.name.value in EVALUATION:
            continue
        for call in file.nodes(cst.Call, below=function):
            head, _, last = (dotted(call.func) or "").partition(".")
            package = file.names.bindings.get(head, "").partition(".")[0]
            if not package or package in _HARMLESS or not any(_is_model(arg, names) for arg in call.args):
                continue
            name = (last or file.names.bindings[head]).rpartition(".")[2]
            own = any(d.name.value == name for f in trial.files for d in f.nodes(cst.FunctionDef, cst.ClassDef))
            if not own and not trial.helper_files.defining(name):
                yield file, call


def _is_model(arg: cst.Arg, models: frozenset[str]) -> bool:
    return _is_owned(arg, frozenset()) and bool(models & {dotted(node) for node in walk(arg.value)})


def classes_made(trial: Trial, call: cst.Call) -> list[tuple[SourceFile, cst.ClassDef]]:
    """Return the classes in the trial's files that a call may make an object of."""
    name = last_name(call.func)
    files = (*trial.files, *trial.helper_files.defining(name))
    return [(file, node) for file in files for node in file.nodes(cst.ClassDef) if node.name.value == name]


def clip_nodes(trial: Trial) -> set[cst.CSTNode]:
    """Return everything inside of what ``step_optimizer`` is given to clip with."""
    return {node for step in trial.steps if step.clip is not None for node in walk(step.clip)}


def _is_owned(arg: cst.Arg, owned: frozenset[str]) -> bool:
    """Return whether the argument is the trial, something it holds, one of its models or optimizers, or their
    parameters."""
    node = arg.value
    while isinstance(node, cst.Call):
        if dotted(node.func) == "list" and len(node.args) == 1:
            node = node.args[0].value
        elif isinstance(node.func, cst.Attribute) and node.func.attr.value in NO_FORWARD:
            node = node.func.value
        else:
            return False
    name = dotted(node) or ""
    return name == "self" or name.startswith("self.") or name in owned


def _is_module(file: SourceFile, node: cst.ClassDef) -> bool:
    """Return whether the class is a torch module: what it does to itself it does in every form of training."""
    return any((file.names.qualified(base.value) or "").rpartition(".")[2].endswith("Module") for base in node.bases)
