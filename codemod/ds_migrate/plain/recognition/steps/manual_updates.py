"""Training loops that step no optimizer after a backward pass: they update weights, or set gradients, by hand."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
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
    updated, given = next(_updates(tree), None), next(_set_gradients(tree), None)
    if updated is None and "backward" in called:
        updated = next(_own_steps(tree), None)
    if updated is not None:
        reason = "weights are updated from gradients by hand, without an optimizer"
        return blocked_loop(Code.PLAIN_GRADIENTS, path, updated, reason, OWN_OPTIMIZER)
    if given is not None and "step" in called and "backward" not in called:
        reason = "step() uses gradients that are set by hand, without backward()"
        advice = "call backward() on the loss in the place of torch.autograd.grad()"
        return blocked_loop(Code.PLAIN_GRADIENTS, path, given, reason, advice)
    return None


def _updates(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yield the statements that move weights by their gradients."""
    for loop in ast.walk(tree):
        if isinstance(loop, ast.For) and _names(loop.iter) & _PARAMETERS:
            gradients = _gradients(loop)
            own = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)} - gradients
            yield from (
                s for line in loop.body for s in ast.walk(line) if isinstance(s, ast.stmt) and _moves(s, own, gradients)
            )
    for block in ast.walk(tree):
        if isinstance(block, ast.With) and any("no_grad" in _names(item.context_expr) for item in block.items):
            yield from (s for s in block.body if isinstance(s, ast.AugAssign) and _descends(s))


def _own_steps(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yield the statements of loops over any tensors that move each by its gradient, outside of optimizers of torch."""
    optimizers = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and _is_optimizer(node))
    left = {node for owner in optimizers for node in ast.walk(owner)}
    for loop in ast.walk(tree):
        if isinstance(loop, ast.For) and isinstance(loop.target, ast.Name) and loop not in left:
            own = {loop.target.id}
            statements = (s for line in loop.body for s in ast.walk(line) if isinstance(s, ast.stmt))
            yield from (s for s in statements if _moves(s, own, set()) and _reads_gradient_of(s, own))


def _is_optimizer(owner: ast.ClassDef) -> bool:
    """Return whether a class is an optimizer of torch, by the names of its bases or by its parameter groups."""
    bases = {name.lower() for base in owner.bases for name in _names(base)}
    return any("optim" in base for base in bases) or "param_groups" in _names(owner)


def _reads_gradient_of(statement: ast.stmt, own: set[str]) -> bool:
    """Return whether a statement reads the gradient of one of these names."""
    gradients = (n for n in ast.walk(statement) if isinstance(n, ast.Attribute) and n.attr == "grad")
    return any(_is_of(gradient.value, own) for gradient in gradients)


def _gradients(loop: ast.For) -> set[str]:
    """Return the names that a loop over parameters binds to gradients: ``g`` of ``p, g in zip(parameters, grads)``."""
    if (
        not isinstance(loop.iter, ast.Call)
        or not isinstance(loop.target, ast.Tuple)
        or _names(loop.iter.func) != {"zip"}
    ):
        return set()
    pairs = zip(loop.target.elts, loop.iter.args, strict=False)
    named = {target: _names(given) for target, given in pairs}
    return {t.id for t, names in named.items() if isinstance(t, ast.Name) and any("grad" in n.lower() for n in names)}


def _moves(statement: ast.stmt, own: set[str], gradients: set[str]) -> bool:
    """Return whether a statement in a loop over parameters changes one by a gradient."""
    if isinstance(statement, ast.AugAssign):
        return _is_of(statement.target, own) and _uses_gradient(statement.value, gradients)
    if isinstance(statement, ast.Assign):
        target = statement.targets[0]
        is_data = isinstance(target, ast.Attribute) and target.attr == "data" and _is_of(target, own)
        return is_data and _uses_gradient(statement.value, gradients)
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        func = statement.value.func
        if isinstance(func, ast.Attribute) and func.attr in _WRITES and _is_of(func.value, own):
            return any(_uses_gradient(arg, gradients) for arg in statement.value.args)
    return False


def _is_of(node: ast.expr, own: set[str]) -> bool:
    """Return whether an expression is a name, or its ``data``."""
    inner = node.value if isinstance(node, ast.Attribute) and node.attr == "data" else node
    return isinstance(inner, ast.Name) and inner.id in own


def _uses_gradient(node: ast.expr, gradients: set[str]) -> bool:
    """Return whether an expression has a gradient, and not just its sign, as attacks on inputs use it."""
    names = _names(node)
    return "sign" not in names and bool(names & {"grad", *gradients})


def _descends(statement: ast.AugAssign) -> bool:
    """Return whether a statement is ``w -= lr * w.grad``."""
    owners = (n.value for n in ast.walk(statement.value) if isinstance(n, ast.Attribute) and n.attr == "grad")
    is_down = isinstance(statement.op, ast.Sub) and "sign" not in _names(statement.value)
    return is_down and any(ast.dump(owner) == _bare(statement.target) for owner in owners)


def _bare(target: ast.expr) -> str:
    return ast.dump(target).replace("ctx=Store()", "ctx=Load()")


def _set_gradients(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yield the statements that set a gradient to something, other than that of a tensor made like another one."""
    for function in (node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.Module))):
        made = set(_made_like_others(function))
        for node in _own_statements(function):
            if not isinstance(node, ast.Assign) or _is_none(node.value):
                continue
            gradients = (t for t in node.targets if isinstance(t, ast.Attribute) and t.attr == "grad")
            if any(not _is_of(target.value, made) for target in gradients):
                yield node


def _own_statements(function: ast.FunctionDef | ast.Module) -> Iterator[ast.AST]:
    """Yield the nodes of a function or module outside of the functions in it."""
    todo: list[ast.AST] = list(function.body)
    while todo:
        node = todo.pop(0)
        yield node
        if not isinstance(node, ast.FunctionDef):
            todo = [*ast.iter_child_nodes(node), *todo]


def _made_like_others(function: ast.FunctionDef | ast.Module) -> Iterator[str]:
    """Yield the names that a function assigns ``torch.zeros_like(x)`` or the like: attacks move such tensors."""
    for node in _own_statements(function):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            name = getattr(node.value.func, "attr", "")
            if name.endswith("_like"):
                yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _names(node: ast.AST) -> set[str]:
    """Return the names and attributes in an expression."""
    found = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    return found | {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
