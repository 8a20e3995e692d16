"""Gradients that a trial reaches itself, past the optimizer."""

from __future__ import annotations

import libcst as cst

from ds_migrate.syntax.nodes import dotted, walk
from ds_migrate.trial.model import Trial
from ds_migrate.trial.training_functions import clip_nodes

_GRADIENT_CLIPS = ("clip_grad_norm_", "clip_grad_norm", "clip_grad_value_")
_HOOKS = frozenset({"register_hook", "register_full_backward_hook", "register_full_backward_pre_hook"})


def clip_code(trial: Trial) -> set[cst.CSTNode]:
    """Return everything that steps alone call to clip: what they are given, and the functions that it names."""
    given = clip_nodes(trial)
    to_clip: set[str | None] = set()
    elsewhere: set[str | None] = {None}
    for file, function in trial.training_functions:
        for node in file.nodes(cst.Name, cst.Attribute, below=function):
            if not _is_defined(node, file.parent(node)):
                (to_clip if node in given else elsewhere).add(dotted(node))
    names = {name for name in to_clip - elsewhere if name is not None}
    functions: list[cst.CSTNode] = []
    for file, function in trial.training_functions:
        if f"self.{function.name.value}" in names:
            functions.append(function)
        functions += [f for f in file.nodes(cst.FunctionDef, below=function) if f.name.value in names]
        functions += [v for v in file.values_of(names, function) if isinstance(v, cst.Lambda)]
    return given.union(*(walk(function) for function in functions))


def _is_defined(node: cst.CSTNode, parent: cst.CSTNode | None) -> bool:
    """Return whether a name is that of a definition, or the last one of an attribute: neither reads a variable."""
    if isinstance(parent, cst.FunctionDef):
        return parent.name is node
    return isinstance(parent, cst.AssignTarget) or (isinstance(parent, cst.Attribute) and parent.attr is node)


def handles_gradients(trial: Trial) -> bool:
    """Return whether the trial reads or changes gradients itself, between backward and step."""
    clips = clip_code(trial)
    for file, function in (*trial.training_functions, *trial.helper_functions):
        for node in file.nodes(cst.Attribute, cst.Call, below=function):
            if node in clips:
                continue
            name = file.names.qualified(node.func if isinstance(node, cst.Call) else node) or ""
            if isinstance(node, cst.Attribute) and node.attr.value == "grad" and not name.startswith("torch."):
                return True
            if isinstance(node, cst.Call) and name.rpartition(".")[2] in _GRADIENT_CLIPS:
                return True
    return False


def hooks_gradients(trial: Trial) -> bool:
    """Return whether hooks of the trial see gradients while they flow back."""
    return any(
        isinstance(node, cst.Attribute) and node.attr.value in _HOOKS
        for file in trial.files
        for node in file.nodes(cst.Attribute)
    )


def differentiates(trial: Trial) -> bool:
    """Return whether the trial calls autograd itself, which DeepSpeed refuses on an engine's outputs."""
    return any(
        (file.names.qualified(node.func) or "").startswith(("torch.autograd.grad", "torch.autograd.functional."))
        for file, function in (*trial.training_functions, *trial.helper_functions)
        for node in file.nodes(cst.Call, below=function)
    )
