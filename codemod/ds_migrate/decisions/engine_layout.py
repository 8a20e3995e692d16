"""The layout of a trial's engines: how many, around what, and whether DeepSpeed counts accumulation itself."""

from __future__ import annotations

from enum import Enum

import libcst as cst

from ds_migrate.decisions.engine_location import EngineLocation
from ds_migrate.decisions.init_order import raw_and_engine
from ds_migrate.project.library_bases import LIBRARY_BASE
from ds_migrate.syntax.nodes import dotted, targets
from ds_migrate.trial.batch_calls import BatchCalls
from ds_migrate.trial.control_flow import runs_once
from ds_migrate.trial.foreign_parameters import has_foreign_parameters
from ds_migrate.trial.gradient_access import differentiates
from ds_migrate.trial.model import Model, Optimizer, Trial, Wrap
from ds_migrate.trial.parameter_ownership import on_every_path
from ds_migrate.trial.training_functions import NO_FORWARD


class Form(Enum):
    """The way in which the engines of a trial are made."""

    SIMPLE = "simple"  # one engine around the model itself, forwards go through it
    PER_OPTIMIZER = "per optimizer"  # one engine per optimizer, forwards go through the raw modules
    COLLECTED = "collected"  # the same, for wraps in loops, branches and helpers: engines are looked up by optimizer


def choose_form(trial: Trial, location: EngineLocation, clips: bool) -> Form:
    """Return how the engines are made. ``clips``: some step clips at all."""
    if _is_irregular(trial):
        return Form.COLLECTED
    return Form.SIMPLE if _is_simple(trial, location, clips) else Form.PER_OPTIMIZER


def is_on_library_base(trial: Trial) -> bool:
    """Return whether the trial is built on a base class of a library, which the runtime has with an engine."""
    return LIBRARY_BASE in trial.facts.bases


def has_one_backward_and_step(trial: Trial) -> bool:
    """Return whether one backward and one step are made whenever ``train_batch`` is: DeepSpeed may count for itself."""
    if len(trial.backwards) != 1 or len(trial.steps) != 1:
        return False
    backward, step = trial.backwards[0], trial.steps[0]
    if backward.use.function is not step.use.function or backward.is_manual or step.is_manual:
        return False
    if backward.use.function is None or backward.use.function.name.value != "train_batch":
        return False
    function = backward.use.function
    if not all(runs_once(use.file, use.node, function) for use in (backward.use, step.use)):
        return False
    running = {function for _, function in trial.training_functions}
    return all(call.runs_once for call in BatchCalls(trial) if call.method == "train_batch" and call.caller in running)


def _is_irregular(trial: Trial) -> bool:
    """Return whether some model or optimizer has no separate name that is always there."""
    if trial.helpers or is_on_library_base(trial):  # the library's class looks its engine up, too
        return True
    owners: list[Model | Optimizer] = [*trial.models, *trial.optimizers]
    return (
        any(w.is_repeated or w.target is None for w in trial.wraps)
        or any(_is_local_to_helper(owner) for owner in owners)
        or any(m.is_optional for m in trial.models)
        or not all(on_every_path(o.wraps) for o in trial.optimizers)
        or any(s.owner is None for s in trial.steps)
    )


def _is_local_to_helper(owner: Model | Optimizer) -> bool:
    """Return whether only a method other than ``__init__`` has a name for it, which it returns to whoever calls it."""
    names = {owner.target, *owner.names}
    helpers = [w.use.function for w in owner.wraps if w.use.function is not None]
    return not any(name.startswith("self.") for name in names) and any(f.name.value != "__init__" for f in helpers)


def _is_simple(trial: Trial, location: EngineLocation, clips: bool) -> bool:
    """Return whether there is one model and one optimizer over it, both always there under one name."""
    if len(trial.models) != 1 or len(trial.optimizers) != 1:
        return False
    model, optimizer = trial.models[0], trial.optimizers[0]
    if not all(dotted(cst.parse_expression(t)) for t in (model.target, optimizer.target)):
        return False
    if (
        differentiates(trial)
        or _is_rebound(trial, model)
        or _is_met_raw_and_as_engine(trial, model, location)
        or any(_is_script(wrap) for wrap in model.wraps)
    ):
        return False
    return optimizer.covers_model or (not clips and not has_foreign_parameters(optimizer, model.names))


def _is_rebound(trial: Trial, model: Model) -> bool:
    """Return whether a method gives the model's attribute another value later (``self.model = self.model.train()``)."""
    makers = {wrap.use.function for wrap in model.wraps}
    return any(
        dotted(target) == model.target and model.target.startswith("self.")
        for part, function in trial.methods()
        if function.name.value != "__init__" and function not in makers
        for node in part.file.nodes(cst.Assign, cst.AnnAssign, below=function)
        for target in targets(node)
    )


def _is_met_raw_and_as_engine(trial: Trial, model: Model, location: EngineLocation) -> bool:
    """Return whether a method that runs before and after the engine is made does what the two answer differently."""
    both = raw_and_engine(trial, location)
    return any(
        function.name.value in both
        and dotted(node) == model.target
        and not (isinstance(around := part.file.parent(node), cst.Call) and around.func is node)
        and not (
            isinstance(around, cst.Attribute)
            and around.attr.value in NO_FORWARD - {"state_dict", "modules", "children"}
        )
        for part, function in trial.methods()
        for node in part.file.nodes(cst.Attribute, below=function)
    )


def _is_script(wrap: Wrap) -> bool:
    """Return whether the model is TorchScript, whose forward an engine cannot hook (but an ``EngineModule``'s)."""
    name = dotted(wrap.argument)
    made = wrap.file.values_of({name}, wrap.use.function) if name is not None and wrap.use.function is not None else []
    return any(
        (wrap.file.names.qualified(call.func) or "").startswith("torch.jit.")
        for value in (wrap.argument, *made)
        for call in wrap.file.nodes(cst.Call, below=value)
    )
