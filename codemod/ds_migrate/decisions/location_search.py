"""The search for the location of the engines: after the last statement that needs the raw models and optimizers."""

from __future__ import annotations

from collections.abc import Collection

import libcst as cst

from ds_migrate.decisions.engine_location import EngineLocation
from ds_migrate.syntax.nodes import children, code, dotted, last_name, parameters, walk
from ds_migrate.trial.model import Part, Trial, Wrap


class EngineLocationError(Exception):
    """There is no such statement; the message gives the reason, ``wrap`` the line."""

    def __init__(self, message: str, wrap: Wrap | None) -> None:
        super().__init__(message)
        self.wrap = wrap


def locate_engine(trial: Trial) -> EngineLocation:
    """Return where the engines are made.

    Raises ``EngineLocationError`` when wraps stand where no one statement comes after them all.
    """
    if trial.helpers:
        return _end_of_init(trial)
    part, function = _home(trial)
    positions = [_top_statement(part, function, wrap) for wrap in trial.wraps]
    late = _is_scheduled_elsewhere(trial)
    for schedule in trial.schedulers:
        try:
            positions.append(_top_statement(part, function, schedule))
        except EngineLocationError:  # made after the engine, over the optimizer that the engine gave back
            late = True
    body = list(function.body.body)
    last = max(body.index(s) for s in positions)
    names = trial.names
    for index in range(last + 1, len(body)):
        if needs_raw(body[index], names, trial):
            last = index
    statement = body[last]
    if isinstance(statement, cst.SimpleStatementLine) and isinstance(statement.body[-1], cst.Return):
        statement = body[last - 1]
    assert isinstance(statement, cst.BaseStatement)
    return EngineLocation(part.file, function, statement, late)


def _end_of_init(trial: Trial) -> EngineLocation:
    """Return the location after everything that ``__init__`` does, helpers that wrap included: in the class whose
    ``__init__`` does more with the context than pass it to ``super()``."""
    inits = list(trial.methods("__init__"))
    for part, function in inits:
        if (part, function) != inits[-1] and _only_passes_on(part, function, trial):
            continue
        body = [s for s in function.body.body if isinstance(s, cst.BaseStatement)]
        if (
            isinstance(body[-1], cst.SimpleStatementLine)
            and isinstance(body[-1].body[-1], cst.Return)
            and len(body) > 1
        ):
            body.pop()
        return EngineLocation(part.file, function, body[-1])
    raise EngineLocationError("the trial has no __init__ in this project", None)


def _only_passes_on(part: Part, init: cst.FunctionDef, trial: Trial) -> bool:
    """Return whether an ``__init__`` gives its context to ``super().__init__`` alone, and wraps nothing."""
    if any(use.function is init for use in trial.uses if use.attr.startswith("wrap_")):
        return False
    context_names = {p.name.value for p in parameters(init)[1:2]} | {"self", "self.context"}
    given = [c for c in part.file.nodes(cst.Call, below=init) if any(dotted(a.value) in context_names for a in c.args)]
    to_base = [c for c in given if isinstance(c.func, cst.Attribute) and c.func.attr.value == "__init__"]
    return len(given) == len(to_base) == 1 and not any(
        (dotted(c.func) or "").startswith("self.") for c in part.file.nodes(cst.Call, below=init)
    )


def _home(trial: Trial) -> tuple[Part, cst.FunctionDef]:
    """Return the most derived function that every wrap is made in or below."""
    wraps = trial.wraps
    holders = {w.use.function for w in wraps}
    if len(holders) == 1:
        function = next(iter(holders))
        part = next((p for p in trial.parts if function in p.methods.values()), None)
        if part is not None and function is not None:
            if function.name.value == "__init__":
                return part, function
            caller = _called_in_init(trial, function.name.value)
            if caller is not None:
                return caller[:2] if _is_raw_needed_later(trial, *caller[1:]) else (part, function)
            raise EngineLocationError(
                f"it is wrapped in {function.name.value}(), which __init__ does not call", wraps[0]
            )
    for part in trial.parts:
        init = part.methods.get("__init__")
        if init is not None:
            return part, init
    raise EngineLocationError("the trial has no __init__ in this project", wraps[0])


def _called_in_init(trial: Trial, name: str) -> tuple[Part, cst.FunctionDef, cst.BaseStatement] | None:
    """Return where ``__init__`` calls the method: once, directly in its body (not in a loop or a branch)."""
    found: list[tuple[Part, cst.FunctionDef, cst.BaseStatement]] = []
    for part, init in trial.methods("__init__"):
        for node in walk(init):
            if isinstance(node, cst.Call) and dotted(node.func) == f"self.{name}":
                top = part.file.statement_in(node, init)
                if isinstance(top, cst.SimpleStatementLine):
                    found.append((part, init, top))
    return found[0] if len(found) == 1 else None


def _is_raw_needed_later(trial: Trial, init: cst.FunctionDef, call: cst.BaseStatement) -> bool:
    """Return whether ``__init__`` still needs the raw model or optimizer after its helper has wrapped them."""
    lasting = {n for n in trial.names if n.startswith("self.")}
    kept = {m.target for m in trial.models} | {o.target for o in trial.optimizers} <= lasting
    body = list(init.body.body)
    return kept and any(needs_raw(statement, lasting, trial) for statement in body[body.index(call) + 1 :])


def _top_statement(part: Part, function: cst.FunctionDef, wrap: Wrap) -> cst.BaseStatement:
    """Return the statement of ``function``'s body in which the wrap is made, directly or through a call."""
    holder = wrap.use.function
    if holder is function:
        found = part.file.statement_in(wrap.call, function)
        assert found is not None
        return found
    if holder is None:
        raise EngineLocationError("it is wrapped outside any function", wrap)
    if function in part.file.ancestors(holder):
        return _last_call(function, holder, wrap)
    spelled = "__init__" if holder.name.value == "__init__" else holder.name.value
    for statement in function.body.body:
        for node in walk(statement):
            if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute):
                continue
            if node.func.attr.value != spelled:
                continue
            receiver = node.func.value
            if (
                dotted(receiver) == "self"
                or (isinstance(receiver, cst.Call) and dotted(receiver.func) == "super")
                or (spelled == "__init__")
            ):
                if not isinstance(statement, cst.BaseStatement):
                    continue
                return statement
    raise EngineLocationError(
        f"it is wrapped in {holder.name.value}(), which {function.name.value}() does not call", wrap
    )


def _last_call(function: cst.FunctionDef, inner: cst.FunctionDef, wrap: Wrap) -> cst.BaseStatement:
    """Return the last statement of ``function``'s body that names a function which is defined inside of it."""
    for statement in reversed(function.body.body):
        below = list(walk(statement))
        named = any(isinstance(n, cst.Name) and n.value == inner.name.value for n in below)
        if named and inner not in below and isinstance(statement, cst.BaseStatement):
            return statement
    raise EngineLocationError(
        f"it is wrapped in {inner.name.value}(), which {function.name.value}() does not call", wrap
    )


def _is_scheduled_elsewhere(trial: Trial) -> bool:
    """Return whether a helper outside of the trial's classes makes a schedule, and ``__init__`` does not call it."""
    inside = {part.node for part in trial.parts}
    helpers = {
        holder.name.value
        for use in trial.uses_of("wrap_lr_scheduler")
        if use.owner not in inside and (holder := use.owner or use.function) is not None
    }
    called = {
        last_name(node.func)
        for _, init in trial.methods("__init__")
        for node in walk(init)
        if isinstance(node, cst.Call)
    }
    return not helpers <= called


def needs_raw(statement: cst.CSTNode, names: Collection[str], trial: Trial) -> bool:
    """Return whether a statement touches a wrapped object (directly, through a method, or by passing ``self``)."""
    stack: list[cst.CSTNode] = [statement]
    while stack:
        node = stack.pop()
        if isinstance(node, (cst.Lambda, cst.FunctionDef)):
            continue  # runs later, by then with the engine
        if isinstance(node, (cst.Name, cst.Attribute)) and dotted(node) in names:
            return True
        if isinstance(node, cst.Subscript) and code(node) in names:
            return True
        if isinstance(node, cst.Arg) and dotted(node.value) == "self":
            return True
        if isinstance(node, cst.Call) and (dotted(node.func) or "").startswith("self."):
            method = (dotted(node.func) or "").removeprefix("self.")
            lasting = {n for n in names if n.startswith("self.")}
            for _, own in trial.methods(method):
                if any(isinstance(n, cst.Attribute) and dotted(n) in lasting for n in walk(own)):
                    return True
        stack.extend(children(node))
    return False
