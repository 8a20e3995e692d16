"""The consumption of a method's ``batch`` parameter."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import libcst as cst

from ds_migrate.syntax.nodes import called_name, children, docstring, dotted, walk
from ds_migrate.syntax.source import SourceFile
from ds_migrate.trial.control_flow import runs_once

# Calls that certainly draw no random number, among what is written above an unpack.
_DRAW_NOTHING = frozenset(
    [
        "print", "len", "isinstance", "cast", "int", "float", "str", "bool", "max", "min", "range", "format", "info",
        "debug", "time", "perf_counter", "items", "keys", "values", "train", "eval", "zero_grad", "step", "reset",
        "parameters", "requires_grad_", "set_epoch", "get_hparam", "get_hparams", "is_epoch_start", "is_epoch_end",
    ]
)  # fmt: skip


class Consumption(Enum):
    UNUSED = "never read"
    INLINE = "read once, where it is unpacked or rebound"
    DELEGATED = "only handed to super()"
    KEPT = "read in several ways"


@dataclass(frozen=True)
class BatchUse:
    """``read`` is the one read of an INLINE or DELEGATED batch that takes it from the iterator."""

    consumption: Consumption
    read: cst.Name | None = None


def batch_use(file: SourceFile, function: cst.FunctionDef, name: str) -> BatchUse:
    """Return how the function consumes its parameter ``name``."""
    references = _references(function, name)
    reads = [r for r in references if not _is_write(file, r)]
    if not reads:
        return BatchUse(Consumption.UNUSED)
    if len(references) == 1 and _given_to_super(file, reads[0], function):
        return BatchUse(Consumption.DELEGATED, reads[0])
    inline = _inline_read(file, function, references, reads)
    return BatchUse(Consumption.KEPT if inline is None else Consumption.INLINE, inline)


def _references(function: cst.FunctionDef, name: str) -> list[cst.Name]:
    """Return reads and writes in source order; attribute names, keywords and inner parameters do not count."""
    found: list[cst.Name] = []
    stack: list[cst.CSTNode] = [function.body]
    while stack:
        node = stack.pop()
        if isinstance(node, cst.Name):
            if node.value == name:
                found.append(node)
            continue
        if isinstance(node, cst.Attribute):
            stack.append(node.value)
            continue
        if isinstance(node, cst.Arg):
            stack.append(node.value)
            continue
        if isinstance(node, (cst.Lambda, cst.FunctionDef)):
            own = [p for p in walk(node.params) if isinstance(p, cst.Param)]
            if any(p.name.value == name for p in own):  # its own batch: only the defaults are evaluated out here
                stack.extend(p.default for p in reversed(own) if p.default is not None)
                continue
        stack.extend(reversed(list(children(node))))
    return found


def _is_write(file: SourceFile, name: cst.Name) -> bool:
    node: cst.CSTNode = name
    for ancestor in file.ancestors(name):
        if isinstance(ancestor, cst.AssignTarget):
            return True
        if isinstance(ancestor, (cst.For, cst.CompFor)):
            return ancestor.target is node
        if isinstance(ancestor, (cst.AnnAssign, cst.NamedExpr)):
            return ancestor.target is node
        if isinstance(ancestor, (cst.AsName, cst.Del)):
            return True
        if not isinstance(ancestor, (cst.Tuple, cst.List, cst.Element, cst.StarredElement)):
            return False
        node = ancestor
    return False


def _given_to_super(file: SourceFile, name: cst.Name, function: cst.FunctionDef) -> bool:
    """Return whether the batch goes to ``super()``'s method of the same name, once in each call."""
    arg = file.parent(name)
    call = file.parent(arg) if isinstance(arg, cst.Arg) and not arg.star else None
    if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Attribute):
        return False
    receiver = call.func.value
    to_super = isinstance(receiver, cst.Call) and dotted(receiver.func) == "super"
    return to_super and call.func.attr.value == function.name.value and runs_once(file, call, function)


def _inline_read(
    file: SourceFile, function: cst.FunctionDef, references: list[cst.Name], reads: list[cst.Name]
) -> cst.Name | None:
    """Return the read that may become ``next(dataloader_iter)`` itself: the only one, in an unpacking directly in the
    body, or the first one, in a statement that gives the name a new value."""
    first = reads[0]
    statement = file.statement_in(first, function)
    if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
        return None
    assign = statement.body[0]
    if not isinstance(assign, cst.Assign) or len(assign.targets) != 1:
        return None
    if any(r in set(walk(assign.value)) for r in reads[1:]) or not _is_plain_value(file, assign, first):
        return None
    if any(not isinstance(r, cst.Name) or file.position(r) < file.position(assign) for r in references):
        return None
    if _leaves_before(file, function, statement) or _may_draw_before(function, statement):
        return None
    unpacks = isinstance(assign.targets[0].target, (cst.Tuple, cst.List))
    rebinds = any(isinstance(n, cst.Name) and n.value == first.value for n in walk(assign.targets[0].target))
    if rebinds or (unpacks and len(references) == 1):
        return first
    return None


def _is_plain_value(file: SourceFile, assign: cst.Assign, read: cst.Name) -> bool:
    """Return whether it is ``= batch`` or ``= cast(T, batch)``: evaluated once, whatever happens."""
    if assign.value is read:
        return True
    call = assign.value
    return (
        isinstance(call, cst.Call)
        and (file.names.qualified(call.func) or "").rpartition(".")[2] == "cast"
        and len(call.args) == 2
        and call.args[1].value is read
    )


def _leaves_before(file: SourceFile, function: cst.FunctionDef, statement: cst.BaseStatement) -> bool:
    """Return whether the function may return before the statement (its batch would then not be taken)."""
    for other in function.body.body:
        if other is statement:
            return False
        if any(isinstance(n, (cst.Return, cst.Raise)) and file.function(n) is function for n in walk(other)):
            return True
    return True


def _may_draw_before(function: cst.FunctionDef, statement: cst.BaseStatement) -> bool:
    """Return whether a random number may be drawn before the statement: fetching a batch draws some too (augmentation,
    a loader's first shuffle), and must keep doing so first."""
    for other in function.body.body:
        if other is statement:
            return False
        for node in walk(other):
            if isinstance(node, cst.Call) and called_name(node) not in _DRAW_NOTHING:
                return True
    return True


def first_statement(function: cst.FunctionDef) -> tuple[cst.CSTNode | None, bool]:
    """Return the statement that a new first line goes beside, and whether it goes after it (a docstring) or before."""
    doc = docstring(function)
    if doc is not None:
        return doc, True
    body = function.body.body
    return (body[0] if body else None), False
