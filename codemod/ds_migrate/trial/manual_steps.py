"""Manual backwards and steps in helpers: what they do past the context cannot be given to an engine."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.syntax.nodes import argument, dotted, last_name, parameters
from ds_migrate.syntax.source import SourceFile
from ds_migrate.trial.model import Trial


def steps_of_helpers(trial: Trial) -> Iterator[tuple[SourceFile, cst.Call]]:
    """Yield ``loss.backward()`` and ``optimizer.step()`` as statements of functions that get what the trial owns."""
    own = {function for _, function in trial.methods()}
    context_uses = {use.node for use in trial.uses}
    stepped = _optimizer_parameters(trial)
    for file, function in trial.training_functions:
        for node in file.nodes(cst.Call, below=function) if function not in own else ():
            func = node.func
            if not isinstance(func, cst.Attribute) or func in context_uses:
                continue
            name = func.attr.value
            receiver = dotted(func.value)
            is_manual = receiver not in ("self", None) if name == "backward" else (function, receiver) in stepped
            if name in ("backward", "step") and is_manual and isinstance(file.parent(node), cst.Expr):
                yield file, node


def steps_outside(trial: Trial) -> Iterator[tuple[SourceFile, cst.Call, str, str]]:
    """Yield calls of functions in files that stay, which call ``loss.backward()`` or ``optimizer.step()``: the file,
    the call, what the function calls, and the name of its file."""
    optimizers = {name for optimizer in trial.optimizers for name in optimizer.names}
    for file, function in trial.training_functions:
        for call in file.nodes(cst.Call, below=function):
            module, _, name = (file.names.qualified(call.func) or "").rpartition(".")
            for other in trial.helper_files.defining(name) if module and not module.startswith("self") else ():
                helpers = [h for h in other.statements if isinstance(h, cst.FunctionDef) and h.name.value == name]
                for helper in helpers:
                    given = {p.name.value: argument(call, i, p.name.value) for i, p in enumerate(parameters(helper))}
                    stepped = {n for n, arg in given.items() if arg is not None and dotted(arg.value) in optimizers}
                    step = next(_manual(other, helper, stepped), None)
                    if step is not None:
                        yield file, call, dotted(step.func) or "", other.path.name


def _manual(file: SourceFile, helper: cst.FunctionDef, optimizers: set[str]) -> Iterator[cst.Call]:
    for node in file.nodes(cst.Call, below=helper):
        owner, _, method = (dotted(node.func) or "").rpartition(".")
        if isinstance(file.parent(node), cst.Expr) and (
            method == "backward" or (method == "step" and owner in optimizers)
        ):
            yield node


def _optimizer_parameters(trial: Trial) -> set[tuple[cst.FunctionDef, str | None]]:
    """Return the parameters by which functions of the project get a wrapped optimizer from the trial."""
    optimizers = {name for optimizer in trial.optimizers for name in optimizer.names}
    functions: dict[str, list[cst.FunctionDef]] = {}
    for file in trial.files:
        for function in file.nodes(cst.FunctionDef):
            functions.setdefault(function.name.value, []).append(function)
    found: set[tuple[cst.FunctionDef, str | None]] = set()
    for part, method in trial.methods():
        for call in part.file.nodes(cst.Call, below=method):
            name = last_name(call.func)
            for function in functions.get(name, ()):
                bound = [p for p in parameters(function) if p.name.value != "self"]
                for index, param in enumerate(bound):
                    given = argument(call, index, param.name.value)
                    if given is not None and dotted(given.value) in optimizers:
                        found.add((function, param.name.value))
    return found
