"""Questions about functions, asked of their ``ast`` nodes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function's body, those of functions and classes inside it left out."""
    stack = list(getattr(function, "body", ()))
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            stack.extend(ast.iter_child_nodes(node))


def returns(function: ast.FunctionDef) -> list[ast.Return]:
    """Return the function's own ``return`` statements, in source order."""
    found = [node for node in own_nodes(function) if isinstance(node, ast.Return)]
    return sorted(found, key=lambda node: node.lineno)


def all_parameters(function: Function) -> list[ast.arg]:
    """Return every parameter, ``*args`` and ``**kwargs`` included."""
    given = function.args
    starred = [arg for arg in (given.vararg, given.kwarg) if arg is not None]
    return [*given.posonlyargs, *given.args, *given.kwonlyargs, *starred]


def parameter(function: ast.FunctionDef, name: str) -> ast.arg | None:
    """Return the parameter of this name."""
    return next((arg for arg in all_parameters(function) if arg.arg == name), None)


def receiver(method: ast.FunctionDef) -> str:
    """Return the name of the method's first parameter, ``self``."""
    given = [*method.args.posonlyargs, *method.args.args]
    return given[0].arg if given else "self"


def names(node: ast.AST) -> set[str]:
    """Return the names that are read below a node."""
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def is_bound_inside(function: ast.FunctionDef, name: str) -> bool:
    """Return whether something in the body gives the name another value, or is a parameter of this name."""
    for node in (n for statement in function.body for n in ast.walk(statement)):
        if isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Load):
            return True
        if isinstance(node, ast.arg) and node.arg == name:
            return True
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.ExceptHandler)) and node.name == name:
            return True
        if isinstance(node, (ast.Global, ast.Nonlocal)) and name in node.names:
            return True
        if isinstance(node, (ast.Import, ast.ImportFrom)) and any((a.asname or a.name) == name for a in node.names):
            return True
    return False


def docstring(function: ast.FunctionDef) -> ast.stmt | None:
    """Return the statement that is the function's docstring."""
    first = function.body[0]
    is_text = (
        isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    )
    return first if is_text else None


def is_free_of(node: ast.AST, local: set[str]) -> bool:
    """Return whether an expression reads none of the names."""
    return not names(node) & local


def local_names(function: ast.FunctionDef) -> set[str]:
    """Return the parameters and the names that the function binds, its receiver left out."""
    bound = {arg.arg for arg in all_parameters(function)}
    bound |= {
        n.id for s in function.body for n in ast.walk(s) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)
    }
    return bound - {receiver(function)}
