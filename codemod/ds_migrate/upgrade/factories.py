"""The methods that make the model, the optimizer and the schedule: each stays, or its one expression is taken over."""

from __future__ import annotations

import ast

from ds_migrate.upgrade.family import Family, OldClass
from ds_migrate.upgrade.functions import all_parameters, receiver
from ds_migrate.upgrade.problem import UpgradeError

GETTERS = ("get_model", "get_optimizer", "get_lr_scheduler")
_GIVEN = {"build_model": (), "optimizer": ("model",), "create_lr_scheduler": ("optimizer",)}


def check_factories(family: Family) -> None:
    """Check that every such method takes what the API before 0.13 gave.

    Raises:
        UpgradeError: one takes more.
    """
    for method, given in _GIVEN.items():
        for cls in family.owners(method):
            node = cls.methods[method]
            positional = [*node.args.posonlyargs, *node.args.args]
            if node.decorator_list or len(positional) - len(node.args.defaults) - 1 > len(given):
                raise UpgradeError(
                    node,
                    f"{cls.name}.{method} is not written as the API before 0.13 calls it",
                    f"write {method}({', '.join(('self', *given))}), without a decorator",
                )


def inline(family: Family, host: OldClass, name: str, value: ast.expr, argument: str) -> str | None:
    """Remove a method that only returns an expression of its one parameter; return the source to use instead of a call:
    ``value`` with ``argument`` in the place of the parameter. None where the method has to stay.
    """
    method, edits = host.methods[name], host.edits
    text, start = edits.source(value), edits.start(value)
    given = all_parameters(method)[1:]
    init = host.methods.get("__init__")
    if (
        len(method.body) > 1
        or len(given) != 1
        or method.args.vararg
        or method.args.kwarg
        or "#" in edits.source(method)
        or any(mark in text for mark in ('"""', "'''", "\\\n"))
        or any(isinstance(n, (ast.Lambda, ast.JoinedStr, ast.comprehension)) for n in ast.walk(value))
        or "pedl." in text  # it is rewritten where it stands
        or any(f".{getter}(" in text for getter in GETTERS)
        or _is_called(family, name)
        or receiver(method) != (receiver(init) if init is not None else "self")
    ):
        return None
    uses = [n for n in ast.walk(value) if isinstance(n, ast.Name) and n.id == given[0].arg]
    for use in sorted(uses, key=edits.start, reverse=True):
        text = text[: edits.start(use) - start] + argument + text[edits.end(use) - start :]
    remove_method(host, method)
    return text


def _is_called(family: Family, name: str) -> bool:
    """Return whether some code of the family asks for the method."""
    nodes = (n for cls in family.classes.values() for n in ast.walk(cls.node))
    return any(isinstance(n, ast.Attribute) and n.attr == name and isinstance(n.value, ast.Name) for n in nodes)


def remove_method(cls: OldClass, method: ast.FunctionDef) -> None:
    """Remove a method with the empty lines below it, or those above it where it is the last one."""
    edits = cls.edits
    start, end = edits.line_start(edits.start(method)), edits.line_end(edits.end(method))
    if method is cls.node.body[-1]:
        start = edits.line_end(len(edits.text[:start].rstrip()) - 1)
    else:
        rest = edits.text[end:]
        end += len(rest) - len(rest.lstrip("\r\n"))
    edits.replace(start, end, "")
