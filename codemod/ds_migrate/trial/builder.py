"""From the classes of a trial to its model: one pass over what it asks of its context."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import libcst as cst

from ds_migrate.project.trials import TrialClass
from ds_migrate.syntax.nodes import argument, code, dotted, walk
from ds_migrate.syntax.source import SourceFile
from ds_migrate.trial.context import ContextNames, ContextUse
from ds_migrate.trial.model import Backward, Optimizer, Part, Step, Trial
from ds_migrate.trial.parameter_ownership import models_of, optimizers_of
from ds_migrate.trial.wraps import wrap_of

# What a helper outside of the trial may do with the context that concerns engines.
HELPED = frozenset({"wrap_model", "wrap_optimizer", "step_optimizer", "backward"})


def class_node(file: SourceFile, name: str, line: int | None = None) -> cst.ClassDef | None:
    """The class of that name (the one nearest to ``line`` when a file has several)."""
    found = [n for n in file.nodes(cst.ClassDef) if n.name.value == name]
    if line is not None:
        found.sort(key=lambda n: abs(file.position(n.name)[0] - line))
    return found[0] if found else None


def build_trial(
    facts: TrialClass, files: Mapping[Path, SourceFile], context_names: Mapping[SourceFile, ContextNames]
) -> Trial:
    """Model one trial. ``files`` are the parsed files of its family by path."""
    parts: list[Part] = []
    for path, name in (facts.key, *facts.bases):
        file = files[path]
        node = class_node(file, name, facts.facts.line if name == facts.facts.name else None)
        assert node is not None, f"{name} was found in {path} by ast"
        parts.append(Part(file, node))
    owners = {part.node for part in parts}
    uses = [
        use
        for file, known in context_names.items()
        for use in known.uses
        if use.owner in owners or use.owner not in known.classes
    ]
    replaced = _replaced(parts)
    uses = [use for use in uses if use.function not in replaced]
    trial = Trial(facts, parts, uses)
    trial.files = list(context_names)
    _collect(trial)
    _by_hand(trial, replaced, {use.node for known in context_names.values() for use in known.uses})
    _pair(trial)
    return trial


def _replaced(parts: list[Part]) -> set[cst.FunctionDef]:
    """Methods of base classes that a more derived class defines anew without calling ``super()``: not this trial's."""
    gone: set[cst.FunctionDef] = set()
    for index, part in enumerate(parts):
        for name, method in part.methods.items():
            later = [other.methods[name] for other in parts[index + 1 :] if name in other.methods]
            if later and not _calls_super(method, name, [other.node.name.value for other in parts]):
                gone.update(later)
    return gone


def _calls_super(method: cst.FunctionDef, name: str, classes: list[str]) -> bool:
    for node in walk(method):
        if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value == name:
            receiver = node.func.value
            if isinstance(receiver, cst.Call) and dotted(receiver.func) == "super":
                return True
            if (dotted(receiver) or "").rpartition(".")[2] in classes:
                return True
    return False


def _collect(trial: Trial) -> None:
    inside = {part.node for part in trial.parts}
    own = [use for use in trial.uses if use.owner in inside]
    wraps = {attr: [w for u in own if u.attr == attr and (w := wrap_of(u)) is not None] for attr in
             ("wrap_model", "wrap_optimizer", "wrap_lr_scheduler")}  # fmt: skip
    trial.models = models_of(wraps["wrap_model"])
    trial.optimizers = optimizers_of(wraps["wrap_optimizer"], trial.models, trial)
    trial.schedulers = wraps["wrap_lr_scheduler"]
    trial.helpers = [u for u in trial.uses if u.owner not in inside and u.call is not None and u.attr in HELPED]
    for use in own:
        if use.call is None:
            continue
        if use.attr == "step_optimizer":
            given = argument(use.call, 0, "optimizer")
            if given is not None:
                clip = argument(use.call, 1, "clip_grads")
                clip_value = None if clip is None or _is_none(clip.value) else clip.value
                trial.steps.append(Step(use, use.call, given.value, _owner(given.value, use, trial), clip_value))
        elif use.attr == "backward":
            trial.backwards.append(Backward(use, use.call))


def _pair(trial: Trial) -> None:
    """Give each backward the step that follows it."""
    for backward in trial.backwards:
        backward.step = _stepped_after(backward, trial)
        backward.owner = backward.step.owner if backward.step is not None else None
        if backward.step is None and trial.optimizers:
            backward.owner = trial.optimizers[0]


def _by_hand(trial: Trial, replaced: set[cst.FunctionDef], context_uses: set[cst.Attribute]) -> None:
    """``loss.backward()``, ``optimizer.step()`` and ``scaler.step(optimizer)`` in the methods that the trial runs."""
    for part, function in trial.methods():
        if function in replaced:
            continue
        for node in part.file.nodes(cst.Call, below=function):
            if not isinstance(node.func, cst.Attribute) or node.func.attr.value not in ("backward", "step"):
                continue
            if node.func in context_uses:
                continue
            use = ContextUse(part.file, node.func, node.func.attr.value, node, part.file.function(node), part.node)
            statement = isinstance(part.file.parent(node), cst.Expr)
            if (
                use.attr == "backward"
                and statement
                and (part.file.names.qualified(node.func) or "") != "torch.autograd.backward"
            ):
                if not _is_itself(node.func.value):
                    trial.backwards.append(Backward(use, node, by_hand=True))
            elif use.attr == "step":
                receiver = node.func.value
                given = node.args[0].value if node.args else None
                for candidate in (receiver, given):
                    owner = _named_owner(candidate, use, trial) if candidate is not None else None
                    if owner is not None and candidate is not None:
                        trial.steps.append(Step(use, node, candidate, owner, by_hand=True))
                        break
    for backward in trial.backwards:
        backward.foreign = backward.by_hand and _steps_another(backward, trial)
    trial.backwards.sort(key=lambda b: b.use.file.position(b.call))


def _steps_another(backward: Backward, trial: Trial) -> bool:
    """Whether the first ``step()`` after a backward by hand is that of an optimizer which is not wrapped."""
    file, function = backward.use.file, backward.use.function
    known = {step.call for step in trial.steps}
    schedules = {wrap.target for wrap in trial.schedulers}
    later = [
        node
        for node in (walk(function) if function is not None else ())
        if isinstance(node, cst.Call)
        and isinstance(node.func, cst.Attribute)
        and (node in known or (node.func.attr.value == "step" and dotted(node.func.value) not in schedules))
        and file.position(node) > file.position(backward.call)
    ]
    return bool(later) and min(later, key=file.position) not in known


def _is_itself(node: cst.BaseExpression) -> bool:
    """``self`` or ``super()``: the trial has a method of its own by that name."""
    return dotted(node) == "self" or (isinstance(node, cst.Call) and dotted(node.func) == "super")


def _is_none(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Name) and node.value == "None"


def _named_owner(node: cst.BaseExpression, use: ContextUse, trial: Trial) -> Optimizer | None:
    """The optimizer that an expression names, through a local alias if need be."""
    text = code(node)
    for optimizer in trial.optimizers:
        if text == optimizer.target or (text in optimizer.names and text.startswith("self.")):
            return optimizer
    if isinstance(node, cst.Name) and use.function is not None:
        values = {dotted(t) for t in use.file.values_of({node.value}, use.function)}
        known = [o for o in trial.optimizers if {o.target, *(n for n in o.names if n.startswith("self."))} & values]
        if len(known) == 1 and len(values) == 1:
            return known[0]
    return None


def _owner(node: cst.BaseExpression, use: ContextUse, trial: Trial) -> Optimizer | None:
    """The optimizer that ``step_optimizer`` is given: the only one there is, if need be."""
    found = _named_owner(node, use, trial)
    if found is None and len(trial.optimizers) == 1 and not isinstance(node, (cst.Subscript, cst.Call)):
        return trial.optimizers[0]
    return found


def _stepped_after(backward: Backward, trial: Trial) -> Step | None:
    """The step that follows the backward: in its own method, or where its method is called from; any step of the trial
    when nothing tells and only one optimizer is stepped."""
    found = _step_after(backward.use.file, backward.use.function, backward.call, trial)
    if found is None and len({s.owner for s in trial.steps}) == 1:
        return trial.steps[0]
    return found


def _step_after(
    file: SourceFile, function: cst.FunctionDef | None, call: cst.Call, trial: Trial, depth: int = 3
) -> Step | None:
    """The first step after the call in its function, preferring the same block; else the one after the calls of that
    function (``self.backward_D()``), when they agree."""
    same = [s for s in trial.steps if s.use.function is function and s.use.file is file]
    if not same:
        if function is None or not depth:
            return None
        callers = _calls_of(function.name.value, trial)
        found = [_step_after(f, caller, site, trial, depth - 1) for f, caller, site in callers]
        return found[0] if len({step.owner if step else None for step in found}) == 1 else None
    position = file.position(call)
    later = [s for s in same if file.position(s.call) > position] or same[::-1]
    blocks = [a for a in file.ancestors(call) if isinstance(a, cst.BaseSuite)]
    for block in blocks:  # innermost first: a step in the same branch belongs to this backward
        inner = [s for s in later if any(a is block for a in file.ancestors(s.call))]
        if inner:
            return inner[0]
    return later[0]


def _calls_of(name: str, trial: Trial) -> list[tuple[SourceFile, cst.FunctionDef, cst.Call]]:
    """Where the trial calls its own method: the file, the method that calls, and the call."""
    return [
        (part.file, caller, node)
        for part, caller in trial.methods()
        for node in walk(caller)
        if isinstance(node, cst.Call) and dotted(node.func) == f"self.{name}" and caller.name.value != name
    ]
