"""Where the engines are made: after the last statement that still needs the raw models and optimizers."""

from __future__ import annotations

from dataclasses import dataclass, replace

import libcst as cst

from ds_migrate.syntax.nodes import children, code, dotted, parameters, targets, walk
from ds_migrate.syntax.source import SourceFile
from ds_migrate.trial.model import Model, Optimizer, Part, Trial, Wrap


@dataclass(frozen=True)
class EngineLocation:
    """The function and, directly in its body, the statement after which the engines are made."""

    file: SourceFile
    function: cst.FunctionDef
    statement: cst.BaseStatement


class EngineLocationError(Exception):
    """There is no such statement; the message says why, ``wrap`` where."""

    def __init__(self, message: str, wrap: Wrap | None) -> None:
        super().__init__(message)
        self.wrap = wrap


def locate_engine(trial: Trial) -> EngineLocation:
    """Find the place. Raises ``NoPlaceError`` when wraps stand where no one statement comes after them all."""
    if trial.helpers:
        return _end_of_init(trial)
    wraps = [w for o in trial.optimizers for w in o.wraps] + [w for m in trial.models for w in m.wraps]
    part, function = _home(trial, wraps)
    positions = [_top_statement(part, function, wrap) for wrap in wraps]
    for schedule in trial.schedulers:
        try:
            positions.append(_top_statement(part, function, schedule))
        except EngineLocationError:  # made after the engine, over the optimizer that the engine gave back
            trial.late_schedule = True
    if _scheduled_elsewhere(trial):
        trial.late_schedule = True
    body = list(function.body.body)
    last = max(body.index(s) for s in positions)
    names = {n for m in trial.models for n in m.names} | {n for o in trial.optimizers for n in o.names}
    for index in range(last + 1, len(body)):
        if _needs_raw(body[index], names, trial):
            last = index
    statement = body[last]
    if isinstance(statement, cst.SimpleStatementLine) and isinstance(statement.body[-1], cst.Return):
        statement = body[last - 1]
    assert isinstance(statement, cst.BaseStatement)
    return EngineLocation(part.file, function, statement)


def after_names(place: EngineLocation, names: set[str]) -> EngineLocation:
    """The same place, or a later one where every one of the names has its value."""
    body = list(place.function.body.body)
    last = body.index(place.statement)
    for index in range(last + 1, len(body)):
        for node in walk(body[index]):
            if any(dotted(t) in names for t in targets(node)):
                last = index
    statement = body[last]
    assert isinstance(statement, cst.BaseStatement)
    return replace(place, statement=statement)


def bare_name(trial: Trial, owner: Model | Optimizer) -> str:
    """``net`` of ``self.model = context.wrap_model(net)`` when ``self.model`` has no use before the engine is made, so
    that the statement can go and the engine be made of ``net``; "" otherwise."""
    place, wrap = trial.place, owner.wraps[0]
    if place is None or len(owner.wraps) != 1 or wrap.use.function is not place.function or wrap.discarded:
        return ""
    name = dotted(wrap.argument)
    if not isinstance(wrap.argument, cst.Name) or name is None or not owner.target.startswith("self."):
        return ""
    if wrap.target != owner.target or not isinstance(wrap.file.parent(wrap.call), cst.Assign):
        return ""
    own = wrap.file.statement_in(wrap.call, place.function)
    body = list(place.function.body.body)
    between = body[: body.index(place.statement) + 1]
    taken = [s for s in between if s is not own and _needs_raw(s, {owner.target}, trial)]
    rebound = (
        [
            s
            for s in between[body.index(own) + 1 :]
            for n in walk(s)
            if isinstance(n, cst.AssignTarget) and dotted(n.target) == name
        ]
        if own in between
        else [own]
    )
    return "" if taken or rebound else name


def _end_of_init(trial: Trial) -> EngineLocation:
    """After everything that ``__init__`` does, helpers that wrap included: in the class whose ``__init__`` has the
    context do more than go on to ``super()``."""
    inits = list(trial.methods("__init__"))
    for part, function in inits:
        if (part, function) != inits[-1] and _only_hands_on(part, function, trial):
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


def _only_hands_on(part: Part, init: cst.FunctionDef, trial: Trial) -> bool:
    """Whether an ``__init__`` gives its context to ``super().__init__`` and to nothing else, and wraps nothing."""
    if any(use.function is init for use in trial.uses if use.attr.startswith("wrap_")):
        return False
    context_names = {p.name.value for p in parameters(init)[1:2]} | {"self", "self.context"}
    given = [c for c in part.file.nodes(cst.Call, below=init) if any(dotted(a.value) in context_names for a in c.args)]
    to_base = [c for c in given if isinstance(c.func, cst.Attribute) and c.func.attr.value == "__init__"]
    return len(given) == len(to_base) == 1 and not any(
        (dotted(c.func) or "").startswith("self.") for c in part.file.nodes(cst.Call, below=init)
    )


def _home(trial: Trial, wraps: list[Wrap]) -> tuple[Part, cst.FunctionDef]:
    """The most derived function that every wrap is made in or below."""
    holders = {w.use.function for w in wraps}
    if len(holders) == 1:
        function = next(iter(holders))
        part = next((p for p in trial.parts if function in p.methods.values()), None)
        if part is not None and function is not None:
            if function.name.value == "__init__":
                return part, function
            caller = _called_in_init(trial, function.name.value)
            if caller is not None:
                return caller[:2] if _wanted_raw_later(trial, *caller[1:]) else (part, function)
            raise EngineLocationError(
                f"it is wrapped in {function.name.value}(), which __init__ does not call", wraps[0]
            )
    for part in trial.parts:
        init = part.methods.get("__init__")
        if init is not None:
            return part, init
    raise EngineLocationError("the trial has no __init__ in this project", wraps[0])


def _called_in_init(trial: Trial, name: str) -> tuple[Part, cst.FunctionDef, cst.BaseStatement] | None:
    """Where ``__init__`` calls the method: once, directly in its body (not in a loop or a branch)."""
    found: list[tuple[Part, cst.FunctionDef, cst.BaseStatement]] = []
    for part, init in trial.methods("__init__"):
        for node in walk(init):
            if isinstance(node, cst.Call) and dotted(node.func) == f"self.{name}":
                top = part.file.statement_in(node, init)
                if isinstance(top, cst.SimpleStatementLine):
                    found.append((part, init, top))
    return found[0] if len(found) == 1 else None


def _wanted_raw_later(trial: Trial, init: cst.FunctionDef, call: cst.BaseStatement) -> bool:
    """Whether ``__init__`` still needs the raw model or optimizer after its helper has wrapped them."""
    names = {n for m in trial.models for n in m.names} | {n for o in trial.optimizers for n in o.names}
    lasting = {n for n in names if n.startswith("self.")}
    kept = {m.target for m in trial.models} | {o.target for o in trial.optimizers} <= lasting
    body = list(init.body.body)
    return kept and any(_needs_raw(statement, lasting, trial) for statement in body[body.index(call) + 1 :])


def after_place(trial: Trial, file: SourceFile, function: cst.FunctionDef, node: cst.CSTNode) -> bool:
    """Whether a statement of an ``__init__`` runs when the engine is there: behind its place, or in a class built on
    the one that makes it, once ``super().__init__`` has run."""
    place = trial.place
    assert place is not None
    top = file.statement_in(node, function)
    body = list(function.body.body)
    if top is None:
        return False
    if function is place.function:
        return body.index(top) > body.index(place.statement)
    inits = [init for _, init in trial.methods("__init__")]
    if place.function not in inits or inits.index(function) > inits.index(place.function):
        return False
    calls = [n for n in walk(function) if isinstance(n, cst.Call) and _is_init_of_base(n)]
    return bool(calls) and file.position(calls[0]) < file.position(node)


def _is_init_of_base(call: cst.Call) -> bool:
    """``super().__init__(...)`` or ``Base.__init__(self, ...)``."""
    return isinstance(call.func, cst.Attribute) and call.func.attr.value == "__init__"


def _top_statement(part: Part, function: cst.FunctionDef, wrap: Wrap) -> cst.BaseStatement:
    """The statement of ``function``'s body in which the wrap is made, directly or through a call."""
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
    """The last statement of ``function``'s body that names a function which is defined inside of it."""
    for statement in reversed(function.body.body):
        below = list(walk(statement))
        named = any(isinstance(n, cst.Name) and n.value == inner.name.value for n in below)
        if named and inner not in below and isinstance(statement, cst.BaseStatement):
            return statement
    raise EngineLocationError(
        f"it is wrapped in {inner.name.value}(), which {function.name.value}() does not call", wrap
    )


def _scheduled_elsewhere(trial: Trial) -> bool:
    """Whether a helper outside of the trial's classes makes a schedule, and ``__init__`` does not call it."""
    inside = {part.node for part in trial.parts}
    helpers = {
        holder.name.value
        for use in trial.uses_of("wrap_lr_scheduler")
        if use.owner not in inside and (holder := use.owner or use.function) is not None
    }
    called = {
        (dotted(node.func) or "").rpartition(".")[2]
        for _, init in trial.methods("__init__")
        for node in walk(init)
        if isinstance(node, cst.Call)
    }
    return not helpers <= called


def _needs_raw(statement: cst.CSTNode, names: set[str], trial: Trial) -> bool:
    """Whether a later statement reads or writes a wrapped object (itself, through a method, or by passing ``self``)."""
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
