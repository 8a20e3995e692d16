"""Training loops that step no optimizer after a backward pass: they update weights, or set gradients, by hand."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from pathlib import Path

from ds_migrate.findings import FileResult, blocked_loop
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.parsing import parse_if_valid

OWN_OPTIMIZER = "step an optimizer of torch.optim: SGD(model.parameters(), lr) does p -= lr * p.grad"
_MAY_UPDATE = re.compile(rb"\btorch\b")
_GRADIENTS = re.compile(rb"\.grad\b|\bautograd\b")
_PARAMETERS = frozenset({"parameters", "named_parameters"})
_WRITES = frozenset({"sub_", "add_", "copy_"})


def manual_update_script(path: Path, data: bytes) -> FileResult | None:
    """Return that a file trains without the ``backward()`` and ``step()`` that an engine takes over; None otherwise."""
    if _MAY_UPDATE.search(data) is None or _GRADIENTS.search(data) is None:
        return None
    tree = parse_if_valid(data)
    if tree is None:
        return None
    called = {n.func.attr for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)}
    updated, given = next(_updates(tree, passes_backward="backward" in called), None), next(_set_gradients(tree), None)
    if updated is not None:
        reason = "weights are updated from gradients by hand, without an optimizer"
        return blocked_loop(Code.PLAIN_GRADIENTS, path, updated, reason, OWN_OPTIMIZER)
    if given is not None and "step" in called and "backward" not in called:
        reason = "step() uses gradients that are set by hand, without backward()"
        advice = "call backward() on the loss in the place of torch.autograd.grad()"
        return blocked_loop(Code.PLAIN_GRADIENTS, path, given, reason, advice)
    return None


def _updates(tree: ast.Module, *, passes_backward: bool) -> Iterator[ast.stmt]:
    """Yield the statements that move weights by their gradients, outside of optimizers of torch.

    A file that passes backward nowhere may have them in loops over ``parameters()`` alone.
    """
    optimizers = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and _is_optimizer(node))
    left = {node for owner in optimizers for node in ast.walk(owner)}
    for outer in ast.walk(tree):
        if isinstance(outer, ast.For) and outer not in left and (passes_backward or _names(outer.iter) & _PARAMETERS):
            gradients = _gradients(outer)
            own = {node.id for node in ast.walk(outer.target) if isinstance(node, ast.Name)} - gradients
            statements = (node for line in outer.body for node in ast.walk(line) if isinstance(node, ast.stmt))
            yield from (line for line in statements if _moves(line, own, gradients))
        elif isinstance(outer, ast.With) and any("no_grad" in _names(item.context_expr) for item in outer.items):
            descents = (s for s in outer.body if isinstance(s, ast.AugAssign) and isinstance(s.op, ast.Sub))
            yield from (
                s for s in descents if f"{ast.unparse(s.target)}.grad" in ast.unparse(s.value) and _uses(s.value)
            )


def _is_optimizer(owner: ast.ClassDef) -> bool:
    """Return whether a class is an optimizer of torch, by the names of its bases or by its parameter groups."""
    bases = {name.lower() for base in owner.bases for name in _names(base)}
    return any("optim" in base for base in bases) or "param_groups" in _names(owner)


def _gradients(loop: ast.For) -> set[str]:
    """Return the names that a loop over parameters binds to gradients: ``g`` of ``p, g in zip(parameters, grads)``."""
    if not isinstance(loop.iter, ast.Call) or not isinstance(loop.target, ast.Tuple):
        return set()
    pairs = zip(loop.target.elts, loop.iter.args, strict=False)
    return {t.id for t, given in pairs if isinstance(t, ast.Name) and "grad" in ast.unparse(given).lower()}


def _moves(statement: ast.stmt, own: set[str], gradients: set[str]) -> bool:
    """Return whether a statement changes one of these names, or its ``data``, by a gradient."""
    if isinstance(statement, ast.AugAssign):
        return _is_of(statement.target, own) and _uses(statement.value, gradients)
    if isinstance(statement, ast.Assign):
        target = statement.targets[0]
        is_data = isinstance(target, ast.Attribute) and target.attr == "data" and _is_of(target, own)
        return is_data and _uses(statement.value, gradients)
    func = statement.value.func if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call) else None
    is_write = isinstance(func, ast.Attribute) and func.attr in _WRITES and _is_of(func.value, own)
    return is_write and _uses(statement, gradients)


def _is_of(node: ast.expr, own: Collection[str]) -> bool:
    """Return whether an expression is a name, or its ``data``."""
    inner = node.value if isinstance(node, ast.Attribute) and node.attr == "data" else node
    return isinstance(inner, ast.Name) and inner.id in own


def _uses(node: ast.AST, gradients: Collection[str] = ()) -> bool:
    """Return whether code has a gradient, and not just its sign, as attacks on inputs use it."""
    names = _names(node)
    return "sign" not in names and bool(names & {"grad", *gradients})


def _set_gradients(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yield the statements that set a gradient, other than that of a tensor made like another one, as attacks do."""
    lines = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
    is_like = [
        isinstance(line.value, ast.Call) and getattr(line.value.func, "attr", "").endswith("_like") for line in lines
    ]
    made = {
        t.id
        for line, like in zip(lines, is_like, strict=True)
        for t in line.targets
        if like and isinstance(t, ast.Name)
    }
    for line in lines:
        gradients = (t for t in line.targets if isinstance(t, ast.Attribute) and t.attr == "grad")
        if not (isinstance(line.value, ast.Constant) and line.value.value is None):
            yield from (line for target in gradients if not _is_of(target.value, made))


def _names(node: ast.AST) -> set[str]:
    """Return the names and attributes in an expression."""
    found = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    return found | {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
