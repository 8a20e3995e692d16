"""The decisions of one conversion, taken before any edit: which engines, managed how, at which ZeRO stage."""

from __future__ import annotations

import libcst as cst

from ds_migrate.decisions.zero_hazards import (
    NO_FORWARD,
    differentiates,
    forward_past_engine,
    handles_gradients,
    hooks_gradients,
    parameter_hazard,
)
from ds_migrate.options import Options
from ds_migrate.syntax.nodes import dotted, targets, walk
from ds_migrate.syntax.source import SourceFile
from ds_migrate.trial.calls import BatchCalls
from ds_migrate.trial.control_flow import runs_once
from ds_migrate.trial.init_order import raw_and_engine
from ds_migrate.trial.model import Form, Model, Optimizer, Trial, Wrap
from ds_migrate.trial.parameter_ownership import on_every_path

# Elementwise optimizers: stepping shards of them is stepping them (matched by exact type, as DeepSpeed does).
ELEMENTWISE = frozenset(
    f"torch.optim.{name}"
    for name in ("SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "Adadelta", "Adamax", "NAdam", "RAdam", "ASGD", "Rprop")
)
# What DeepSpeed itself allows under ZeRO without zero_allow_untested_optimizer.
_TESTED = frozenset({"torch.optim.Adam", "torch.optim.AdamW", "torch.optim.Adagrad"})


def decide(trial: Trial, options: Options, clips: bool, keeps_clip: bool, sums: bool) -> None:
    """Fill in form, accumulation, stage and the reason for it.

    ``clips``: some step clips at all; ``keeps_clip``: some step clips in a way that no config can say; ``sums``: the
    trial looks at gradients while they are sums over the micro-batches, so DeepSpeed must not count those for itself.
    """
    if _is_irregular(trial):
        trial.form = Form.COLLECTED
    else:
        trial.form = Form.SIMPLE if _is_simple(trial, clips) else Form.PER_OPTIMIZER
    trial.managed = trial.form is Form.SIMPLE and not sums and _one_backward_one_step(trial)
    trial.stage, trial.stage_reason = _stage(trial, keeps_clip, options.target)
    if options.zero is not None:
        trial.stage_refused = refused_stage(trial, options.zero, keeps_clip, options.target)
        trial.stage, trial.stage_reason = options.zero, "" if options.zero else trial.stage_reason


def _is_irregular(trial: Trial) -> bool:
    """Whether some model or optimizer has no name of its own that is always there."""
    wraps = [w for m in trial.models for w in m.wraps] + [w for o in trial.optimizers for w in o.wraps]
    if trial.helpers:
        return True
    owners: list[Model | Optimizer] = [*trial.models, *trial.optimizers]
    return (
        any(w.repeated or w.target is None for w in wraps)
        or any(_local_to_helper(owner) for owner in owners)
        or any(m.sometimes for m in trial.models)
        or not all(on_every_path(o.wraps) for o in trial.optimizers)
        or any(s.owner is None for s in trial.steps)
    )


def _local_to_helper(owner: Model | Optimizer) -> bool:
    """Whether only a method other than ``__init__`` has a name for it, which it returns to whoever calls it."""
    names = {owner.target, *owner.names}
    helpers = [w.use.function for w in owner.wraps if w.use.function is not None]
    return not any(name.startswith("self.") for name in names) and any(f.name.value != "__init__" for f in helpers)


def _is_simple(trial: Trial, clips: bool) -> bool:
    """One model, one optimizer over it, both always there under one name."""
    if len(trial.models) != 1 or len(trial.optimizers) != 1:
        return False
    model, optimizer = trial.models[0], trial.optimizers[0]
    if not all(dotted(_parsed(t)) for t in (model.target, optimizer.target)):
        return False
    if (
        differentiates(trial)
        or _rebinds(trial, model)
        or _met_raw_and_as_engine(trial, model)
        or any(_is_script(wrap) for wrap in model.wraps)
    ):
        return False
    if optimizer.covers_model:
        return True
    return not clips and not foreign_parameters(optimizer, model.names)


def _rebinds(trial: Trial, model: Model) -> bool:
    """Whether a method gives the model's attribute another value later (``self.model = self.model.train()``)."""
    makers = {wrap.use.function for wrap in model.wraps}
    return any(
        dotted(target) == model.target and model.target.startswith("self.")
        for part, function in trial.methods()
        if function.name.value != "__init__" and function not in makers
        for node in part.file.nodes(cst.Assign, cst.AnnAssign, below=function)
        for target in targets(node)
    )


def _met_raw_and_as_engine(trial: Trial, model: Model) -> bool:
    """Whether a method that runs both before and after the engine is made does what the two answer differently."""
    both = raw_and_engine(trial)
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
    """Whether the model is TorchScript, whose forward an engine cannot hook (it can hook an ``EngineModule``'s)."""
    name = dotted(wrap.argument)
    made = wrap.file.values_of({name}, wrap.use.function) if name is not None and wrap.use.function is not None else []
    return any(
        (wrap.file.names.qualified(call.func) or "").startswith("torch.jit.")
        for value in (wrap.argument, *made)
        for call in wrap.file.nodes(cst.Call, below=value)
    )


def _parsed(text: str) -> cst.BaseExpression:
    return cst.parse_expression(text)


def foreign_parameters(optimizer: Optimizer, names: set[str]) -> bool:
    """Whether the optimizer may own parameters that are not the model's (or nothing shows that it owns the model's)."""
    if not optimizer.models:
        return True
    loop_names = {
        t.value
        for e in optimizer.built_by
        for n in walk(e)
        if isinstance(n, cst.CompFor)
        for t in walk(n.target)
        if isinstance(t, cst.Name)
    }
    for expression in optimizer.built_by:
        for node in walk(expression):
            if isinstance(node, cst.Attribute) and node.attr.value in (
                "parameters",
                "named_parameters",
                "trainable_parameters",
            ):
                owner = dotted(node.value)
                inside = owner is not None and any(owner == n or owner.startswith(n + ".") for n in names)
                if not inside and (owner or "").split(".")[0] not in loop_names:
                    return True
            if isinstance(node, cst.Attribute) and node.attr.value == "Parameter":
                return True
    return False


def bare_parameters(optimizer: Optimizer) -> bool:
    """Whether the optimizer is given a parameter or tensor that lies in no module."""
    wrapped = {node for model in optimizer.models for wrap in model.wraps for node in walk(wrap.call)}
    for expression in optimizer.built_by:
        for node in walk(expression):
            if node in wrapped:
                continue
            if isinstance(node, cst.Call) and (dotted(node.func) or "").rpartition(".")[2] == "Parameter":
                return True
            if isinstance(node, cst.Arg) and node.keyword is not None and node.keyword.value == "requires_grad":
                return True
    return False


def _one_backward_one_step(trial: Trial) -> bool:
    """Exactly one backward and one step, both made whenever ``train_batch`` is: DeepSpeed may count for itself."""
    if len(trial.backwards) != 1 or len(trial.steps) != 1:
        return False
    backward, step = trial.backwards[0], trial.steps[0]
    if backward.use.function is not step.use.function or backward.by_hand or step.by_hand:
        return False
    if backward.use.function is None or backward.use.function.name.value != "train_batch":
        return False
    function = backward.use.function
    if not all(runs_once(use.file, use.node, function) for use in (backward.use, step.use)):
        return False
    return all(call.once for call in BatchCalls(trial) if call.method == "train_batch")


def _stage(trial: Trial, keeps_clip: bool, target: str) -> tuple[int, str]:
    """The ZeRO stage written by default, and why it is not higher."""
    if trial.form is not Form.SIMPLE:
        return 0, "engines per optimizer share models"
    if not trial.managed:
        return 0, "backward and step are not called exactly once per micro-batch"
    reason = _not_sharded(trial, keeps_clip, target)
    return (0, reason) if reason else (1, "")


def refused_stage(trial: Trial, wanted: int, keeps_clip: bool, target: str) -> str:
    """Why a ZeRO stage that the user wants would not train to the trial's numbers; "" when it would."""
    if wanted <= trial.stage:
        return ""
    if trial.form is Form.COLLECTED:
        return "its models and optimizers are known only when it runs"
    if trial.form is Form.PER_OPTIMIZER:
        return (
            "forwards go past its engines, which stages 0 and 1 allow only"
            if wanted > 1
            else _not_sharded(trial, keeps_clip, target)
        )
    if trial.stage_reason:
        return trial.stage_reason
    return forward_past_engine(trial) if wanted == 3 else ""


def _not_sharded(trial: Trial, keeps_clip: bool, target: str) -> str:
    """Why sharded optimizer state would not give the trial's numbers."""
    if keeps_clip:
        return "gradients are clipped by the trial's own function"
    if trial.late_schedule:
        return "a learning rate schedule is made after the engine"
    trial.tested_optimizer = True
    for optimizer in trial.optimizers:
        kinds = {_constructor(w.file, w.argument, w.use.function) for w in optimizer.wraps}
        for kind in kinds - ELEMENTWISE:
            return f"{kind or 'the optimizer'} is not known to be elementwise"
        if "torch.optim.Adagrad" in kinds and target == "determined":  # the bundled runtime keeps the trial's
            return "DeepSpeed replaces an Adagrad by one of its own, without parameter groups and schedules"
        trial.tested_optimizer = trial.tested_optimizer and kinds <= _TESTED
    if handles_gradients(trial) or hooks_gradients(trial):
        return "the trial reads or clips gradients itself"
    return parameter_hazard(trial)


def _constructor(file: SourceFile, node: cst.BaseExpression, function: cst.FunctionDef | None) -> str | None:
    for _ in range(3):
        if isinstance(node, cst.Call):
            return file.names.qualified(node.func)
        name = dotted(node)
        if name is None or function is None:
            return None
        values = [v for v in file.values_of({name}, function) if not _is_wrap(v)]
        kinds = {file.names.qualified(v.func) for v in values if isinstance(v, cst.Call)}
        if len(values) > 1 and len(kinds) == 1:
            return kinds.pop()
        if len(values) != 1:
            return None
        node = values[0]
    return None


def _is_wrap(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Call) and (dotted(node.func) or "").endswith(".wrap_optimizer")
