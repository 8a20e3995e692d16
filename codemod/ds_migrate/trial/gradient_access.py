"""Gradients that a trial reaches itself, past the optimizer."""

from __future__ import annotations

import libcst as cst

from ds_migrate.syntax.nodes import dotted, walk
from ds_migrate.trial.model import Trial
from ds_migrate.trial.training_functions import clip_nodes

_GRADIENT_CLIPS = ("clip_grad_norm_", "clip_grad_norm", "clip_grad_value_")
_HOOKS = frozenset({"register_hook", "register_full_backward_hook", "register_full_backward_pre_hook"})


def handles_gradients(trial: Trial) -> bool:
    """Return whether the trial reads or changes gradients itself, between backward and step."""
    given = clip_nodes(trial)
    called = {
        dotted(call.func)
        for file, function in trial.training_functions
        for call in file.nodes(cst.Call, below=function)
        if call not in given
    }
    # What the step alone calls; a call elsewhere is the trial's.
    clip_functions = {name for node in given if (name := dotted(node)) is not None and name not in called}
    for file, function in trial.training_functions:
        if f"self.{function.name.value}" in clip_functions:
            continue
        inner = [f for f in file.nodes(cst.FunctionDef, below=function) if f.name.value in clip_functions]
        inner += [v for v in file.values_of(clip_functions, function) if isinstance(v, cst.Lambda)]
        clips = {node for clip in inner for node in walk(clip)}
        for node in file.nodes(cst.Attribute, cst.Call, below=function):
            if node in given or node in clips:
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
        for file, function in trial.training_functions
        for node in file.nodes(cst.Call, below=function)
    )
