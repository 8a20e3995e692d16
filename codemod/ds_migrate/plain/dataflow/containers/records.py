"""Records: calls that set the attributes of what they make, as those of dataclasses and named tuples."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.dataflow.containers.container_items import item_name
from ds_migrate.plain.dataflow.expressions import Expressions
from ds_migrate.plain.dataflow.torch_names import NAMED_TUPLE, NAMESPACES
from ds_migrate.plain.dataflow.values import Kind, Value, Variable
from ds_migrate.syntax.nodes import argument, body_of, decorators, dotted
from ds_migrate.syntax.source import SourceFile

_DATA_CLASSES = frozenset({"dataclass", "dataclasses.dataclass", "attr.s", "attrs.define", "define"})
_TUPLES = frozenset({"NamedTuple", "typing.NamedTuple"})


def fields_set_by(
    call: cst.Call, file: SourceFile, expressions: Expressions
) -> Iterator[tuple[Variable, cst.BaseExpression]]:
    """Yield the attributes that a call sets because a class or named tuple lists them, with what they are set to."""
    for callee in expressions.values(call.func, file):
        is_namespace = callee.kind is Kind.EXTERNAL and callee.name in NAMESPACES
        if is_namespace or expressions.classes.is_attribute_dict(callee):
            for arg in call.args:
                if arg.keyword is not None:
                    name = arg.keyword.value
                    yield (id(call), f".{name}" if is_namespace else item_name(name)), arg.value
        names = _fields(callee, expressions)
        for index, arg in enumerate(call.args if names else ()):
            if arg.star:
                break
            name = arg.keyword.value if arg.keyword is not None else names[index] if index < len(names) else ""
            if name in names and callee.kind is Kind.CLASS:
                yield expressions.classes.attribute(callee.key, name), arg.value
            elif name in names:
                yield (id(call), f".{name}"), arg.value


def _fields(callee: Value, expressions: Expressions) -> list[str]:
    _, node = expressions.variables.node_of(callee.key) or (None, None)
    if callee.kind is Kind.CLASS and isinstance(node, cst.ClassDef):
        is_record = any(dotted(one) in _DATA_CLASSES for one in decorators(node))
        is_record |= any(dotted(base.value) in _TUPLES for base in node.bases)
        is_made_otherwise = expressions.classes.method(callee.key, "__init__") is not None
        return _annotated(node) if is_record and not is_made_otherwise else []
    if callee.kind is Kind.OBJECT and callee.name == NAMED_TUPLE and isinstance(node, cst.Call):
        return _listed(node)
    return []


def _annotated(node: cst.ClassDef) -> list[str]:
    """Return the annotated names in the body of a class, in order."""
    small = [part for line in body_of(node) if isinstance(line, cst.SimpleStatementLine) for part in line.body]
    return [dotted(part.target) or "" for part in small if isinstance(part, cst.AnnAssign)]


def _listed(call: cst.Call) -> list[str]:
    """Return the names that ``namedtuple()`` is given, in a list or in one string."""
    given = argument(call, 1, "field_names")
    if given is not None and isinstance(given.value, cst.SimpleString):
        return str(given.value.evaluated_value).replace(",", " ").split()
    elements = given.value.elements if given is not None and isinstance(given.value, (cst.List, cst.Tuple)) else ()
    return [str(each.value.evaluated_value) if isinstance(each.value, cst.SimpleString) else "" for each in elements]
