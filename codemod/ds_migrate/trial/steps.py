"""The steps and backwards of a trial, through the context or past it, and which step a backward belongs to."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import libcst as cst

from ds_migrate.syntax.nodes import argument, code, dotted, is_literal, walk
from ds_migrate.syntax.source import SourceFile
from ds_migrate.trial.context import ContextUse
from ds_migrate.trial.model import Backward, Optimizer, Step, Trial


def manual_calls(
    trial: Trial, replaced: Collection[cst.FunctionDef], context_uses: Collection[cst.Attribute]
) -> Iterator[ContextUse]:
    """Yield the calls of ``x.backward(...)`` and ``x.step(...)`` past the context in the methods that the trial runs.

    ``replaced``: methods that it does not run. ``context_uses``: the attributes taken from contexts.
    """
    for part, function in trial.methods():
        for node in part.file.nodes(cst.Call, below=function) if function not in replaced else ():
            func = node.func
            if isinstance(func, cst.Attribute) and func.attr.value in ("backward", "step") and func not in context_uses:
                yield ContextUse(part.file, func, func.attr.value, node, part.file.function(node), part.node)


def steps_of(trial: Trial, own: Collection[ContextUse], manual: Collection[ContextUse]) -> Iterator[Step]:
    """Yield the steps: those through the context, then those past it. Needs the trial's optimizers.

    ``own``: the uses of the context in the trial's classes. ``manual``: ``manual_calls``.
    """
    for use in own:
        given = argument(use.call, 0, "optimizer") if use.attr == "step_optimizer" and use.call is not None else None
        if given is not None and use.call is not None:
            clip = argument(use.call, 1, "clip_grads")
            clip_value = None if clip is None or is_literal(clip.value, "None") else clip.value
            yield Step(use, use.call, given.value, _owner(given.value, use, trial), clip_value)
    for use in manual:
        if use.attr != "step" or use.call is None:
            continue
        for candidate in (use.node.value, use.call.args[0].value if use.call.args else None):
            owner = _named_owner(candidate, use, trial) if candidate is not None else None
            if owner is not None and candidate is not None:
                yield Step(use, use.call, candidate, owner, is_manual=True)
                break


def backwards_of(trial: Trial, own: Collection[ContextUse], manual: Collection[ContextUse]) -> list[Backward]:
    """Return the backwards in source order, each with the step that follows it. Needs the trial's steps."""
    found = [_paired(use, use.call, trial) for use in own if use.attr == "backward" and use.call is not None]
    for use in manual:
        if use.attr == "backward" and use.call is not None and _is_backward(use, use.call):
            found.append(_paired(use, use.call, trial, is_manual=True))
    return sorted(found, key=lambda b: b.use.file.position(b.call))


def _is_backward(use: ContextUse, call: cst.Call) -> bool:
    """Return whether a call past the context is the statement ``loss.backward()``, and not of the trial or autograd."""
    file, receiver = use.file, use.node.value
    if not isinstance(file.parent(call), cst.Expr) or file.names.qualified(use.node) == "torch.autograd.backward":
        return False
    return not (dotted(receiver) == "self" or (isinstance(receiver, cst.Call) and dotted(receiver.func) == "super"))


def _paired(use: ContextUse, call: cst.Call, trial: Trial, is_manual: bool = False) -> Backward:
    step = _stepped_after(use, call, trial)
    owner = step.owner if step is not None else next(iter(trial.optimizers), None)
    return Backward(use, call, step, owner, is_manual, is_manual and _steps_another(use, call, trial))


def _steps_another(use: ContextUse, call: cst.Call, trial: Trial) -> bool:
    """Return whether the first ``step()`` after a manual backward is that of an optimizer which is not wrapped."""
    file, function = use.file, use.function
    known = {step.call for step in trial.steps}
    schedules = {wrap.target for wrap in trial.schedulers}
    later = [
        node
        for node in (walk(function) if function is not None else ())
        if isinstance(node, cst.Call)
        and isinstance(node.func, cst.Attribute)
        and (node in known or (node.func.attr.value == "step" and dotted(node.func.value) not in schedules))
        and file.position(node) > file.position(call)
    ]
    return bool(later) and min(later, key=file.position) not in known


def _named_owner(node: cst.BaseExpression, use: ContextUse, trial: Trial) -> Optimizer | None:
    """Return the optimizer that an expression names, through a local alias if need be."""
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
    """Return the optimizer that ``step_optimizer`` is given: the only one there is, if need be."""
    found = _named_owner(node, use, trial)
    if found is None and len(trial.optimizers) == 1 and not isinstance(node, (cst.Subscript, cst.Call)):
        return trial.optimizers[0]
    return found


def _stepped_after(use: ContextUse, call: cst.Call, trial: Trial) -> Step | None:
    """Return the step that follows a backward: in its own method, or where its method is called from; any step of the
    trial when neither has one and only one optimizer is stepped."""
    found = _step_after(use.file, use.function, call, trial)
    if found is None and len({s.owner for s in trial.steps}) == 1:
        return trial.steps[0]
    return found


def _step_after(
    file: SourceFile, function: cst.FunctionDef | None, call: cst.Call, trial: Trial, depth: int = 3
) -> Step | None:
    """Return the first step after the call in its function, preferring the same block; else the one after the calls of
    that function (``self.backward_D()``), when they agree."""
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
    """Return where the trial calls its own method: the file, the method that calls, and the call."""
    return [
        (part.file, caller, node)
        for part, caller in trial.methods()
        for node in walk(caller)
        if isinstance(node, cst.Call) and dotted(node.func) == f"self.{name}" and caller.name.value != name
    ]
