"""Uses of a function beside the calls of it that are known: it may be called by another name, or from a library."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.syntax.nodes import argument, has_star, positional
from ds_migrate.syntax.source import SourceFile

_HANDS_ON = (cst.Arg, cst.Assign, cst.AnnAssign, cst.Return, cst.DictElement, cst.Element)
_SHORTEST = 3  # characters of a name that may stand for a longer one
_ASKS = frozenset({"isinstance", "issubclass", "super", "type", "hasattr", "cast"})


def uses_besides_calls(
    function: cst.FunctionDef, parameter: str, file: SourceFile, flow: Flow
) -> Iterator[tuple[SourceFile, cst.CSTNode, cst.Arg | None]]:
    """Yield where a function, or the class of an ``__init__``, is handed on, or called in a way that is not followed.

    A call of an unknown object counts where it gives an argument that is called like the parameter, or a star that may
    hide it: other classes may have a method of that name. The argument comes third.
    """
    known = {id(call.func) for _, call in flow.callers.of(function)}
    owner = class_around(function, file)
    node = owner if owner is not None and function.name.value == "__init__" else function
    name, place = node.name.value, _place(function, parameter, is_method=owner is not None)
    for other in flow.files.values():
        uses = other.nodes(cst.Name, cst.Attribute) if name.encode() in other.data else ()
        for used in uses:
            if id(used) in known or used is node.name or _name(used) != name:
                continue
            values = flow.values(used, other)
            if any(value.key == id(node) for value in values) if values else isinstance(used, cst.Attribute):
                around = other.parent(used)
                assert around is not None
                if isinstance(around, cst.Call) and around.func is used:
                    given = argument(around, place, parameter)
                    if given is not None and (values or is_named_like(given, parameter)):
                        yield other, used, given
                    elif given is None and has_star(around):
                        yield other, used, None
                elif values and isinstance(around, _HANDS_ON) and not _is_asked(used, other):
                    yield other, used, None


def is_named_like(arg: cst.Arg, parameter: str) -> bool:
    """Return whether an argument is given by name, or is a variable like the parameter, as ``opt`` is."""
    node = arg.value.attr if isinstance(arg.value, cst.Attribute) else arg.value
    name = node.value.lower() if isinstance(node, cst.Name) else ""
    is_alike = len(name) >= _SHORTEST and (name in parameter.lower() or parameter.lower() in name)
    return arg.keyword is not None or name == parameter.lower() or is_alike


def class_around(function: cst.FunctionDef, file: SourceFile) -> cst.ClassDef | None:
    """Return the class that a function is a method of."""
    around = file.parent(file.parent(function) or function)
    return around if isinstance(around, cst.ClassDef) else None


def _name(used: cst.Name | cst.Attribute) -> str:
    return used.attr.value if isinstance(used, cst.Attribute) else used.value


def _place(function: cst.FunctionDef, parameter: str, *, is_method: bool) -> int | None:
    """Return the number of the argument that a call of a function gives for a parameter, without ``self``."""
    names = [p.name.value for p in positional(function)]
    return names.index(parameter) - is_method if parameter in names else None


def _is_asked(used: cst.CSTNode, file: SourceFile) -> bool:
    """Return whether a name is a base class, a keyword, or just asked for, as by ``isinstance(x, (A, B))``."""
    around = file.parent(used)
    if isinstance(around, cst.Arg) and around.keyword is used:
        return True
    for outer in file.ancestors(used):
        if isinstance(outer, cst.Call):
            return isinstance(outer.func, cst.Name) and outer.func.value in _ASKS
        if isinstance(outer, (cst.ClassDef, cst.Comparison)):
            return True
        if not isinstance(outer, (cst.Arg, cst.Element, cst.Tuple, cst.ComparisonTarget)):
            break
    return False
