"""``create_lr_scheduler``: it returns torch's scheduler, and ``wrap_lr_scheduler`` gets its step mode."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from ds_migrate.upgrade.factories import inline
from ds_migrate.upgrade.family import Family, OldClass
from ds_migrate.upgrade.functions import is_free_of, local_names, returns
from ds_migrate.upgrade.problem import UpgradeError

_EVERY_BATCH, _EVERY_STEP = "STEP_EVERY_BATCH", "STEP_EVERY_OPTIMIZER_STEP"


@dataclass(frozen=True)
class Schedule:
    """Source of the scheduler, and of its step mode."""

    scheduler: str
    step_mode: str


def upgrade_schedule(family: Family, host: OldClass, me: str, optimizer: str, accumulates: bool) -> Schedule | None:
    """Rewrite the methods that create schedules; return what ``__init__`` has to wrap, None where there is none.

    Args:
        family: the trials.
        host: the class whose ``__init__`` wraps; ``me`` is what it calls itself.
        optimizer: source of the trial's optimizer.
        accumulates: whether an experiment config aggregates gradients over batches: then STEP_EVERY_BATCH meant the
            optimizer's steps.

    Raises:
        UpgradeError: it cannot be determined what a method returns.
    """
    owners = family.owners("create_lr_scheduler")
    if not owners:
        return None
    modes = {_step_mode(cls) for cls in owners}
    if len(modes) > 1:
        raise UpgradeError(
            owners[1].node,
            "the classes that build on each other have schedules with different step modes",
            "use one step mode, or wrap model, optimizer and schedule by hand",
        )
    mode = modes.pop()
    if accumulates and mode.endswith(_EVERY_BATCH):
        mode = mode.removesuffix(_EVERY_BATCH) + _EVERY_STEP
        owners[0].edits.notice(
            owners[0].methods["create_lr_scheduler"],
            f"with accumulated gradients {_EVERY_BATCH} meant the optimizer's steps: it is {_EVERY_STEP} now",
            is_review=True,
        )
    if owners == [host]:
        method = host.methods["create_lr_scheduler"]
        only = method.body[0]
        call = _call(method, only) if isinstance(only, ast.Return) else None
        inlined = inline(family, host, "create_lr_scheduler", _inner(call), optimizer) if call is not None else None
        if inlined is not None:
            return Schedule(inlined, mode)
    for cls in owners:
        _return_inner(cls)
    return Schedule(f"{me}.create_lr_scheduler({optimizer})", mode)


def _step_mode(cls: OldClass) -> str:
    method = cls.methods["create_lr_scheduler"]
    calls = [_call(method, found) for found in returns(method)]
    nodes = [None if call is None else _mode(call) for call in calls]
    modes = {cls.edits.source(node) for node in nodes if node is not None}
    if None in nodes or len(modes) != 1:
        raise UpgradeError(
            method,
            f"{cls.name}.create_lr_scheduler does not end with an LRScheduler and one step mode",
            "end it with return LRScheduler(scheduler, step_mode=LRScheduler.StepMode.STEP_EVERY_EPOCH)",
        )
    for node in nodes:
        if node is not None and not is_free_of(node, local_names(method)):
            raise UpgradeError(
                node,
                f"the step mode of {cls.name}.create_lr_scheduler depends on a local variable",
                "write the step mode where the LRScheduler is created",
            )
    return modes.pop()


def _return_inner(cls: OldClass) -> None:
    """Let the method return torch's scheduler."""
    method, edits = cls.methods["create_lr_scheduler"], cls.edits
    for call in {call for found in returns(method) if (call := _call(method, found)) is not None}:
        inner = _inner(call)
        edits.replace(edits.start(call), edits.start(inner), "")
        edits.replace(edits.end(inner), edits.end(call), "")
    if method.returns is not None:
        before = edits.text[: edits.start(method.returns)].rstrip().removesuffix("->").rstrip()
        edits.replace(len(before), edits.end(method.returns), "")


def _call(method: ast.FunctionDef, found: ast.Return) -> ast.Call | None:
    """Return the ``LRScheduler(...)`` that a ``return`` gives, through a name that is assigned once."""
    value = found.value
    if isinstance(value, ast.Name):
        assigned = [
            n for n in ast.walk(method)
            if isinstance(n, ast.Assign) and any(isinstance(t, ast.Name) and t.id == value.id for t in n.targets)
        ]  # fmt: skip
        value = assigned[0].value if len(assigned) == 1 else None
    if not isinstance(value, ast.Call) or not (value.args or any(w.arg in _SCHEDULER for w in value.keywords)):
        return None
    name = getattr(value.func, "attr", getattr(value.func, "id", ""))
    return value if name == "LRScheduler" else None


_SCHEDULER = ("scheduler", "lr_scheduler")


def _inner(call: ast.Call) -> ast.expr:
    """Return torch's scheduler."""
    return call.args[0] if call.args else next(word.value for word in call.keywords if word.arg in _SCHEDULER)


def _mode(call: ast.Call) -> ast.expr | None:
    if len(call.args) > 1:
        return call.args[1]
    return next((word.value for word in call.keywords if word.arg == "step_mode"), None)
