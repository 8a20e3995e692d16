"""Attributes that a program sets by their text: with ``setattr()``, or all of a dict at once."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.dataflow.containers.container_items import item_name
from ds_migrate.plain.dataflow.expressions import Expressions
from ds_migrate.plain.dataflow.lookup.imported_modules import leading_text
from ds_migrate.plain.dataflow.values import Values, Variable, attribute_owner
from ds_migrate.syntax.nodes import dotted, receiver
from ds_migrate.syntax.source import SourceFile


def attributes_set_by(call: cst.Call, file: SourceFile, expressions: Expressions) -> Iterator[tuple[Variable, Values]]:
    """Yield the attributes that a call sets by their names, with what they are set to.

    These are ``setattr(owner, name, value)``, ``owner.register_parameter(name, value)``,
    ``owner.__dict__.update(values)`` and ``vars(owner).update(values)``.
    Names of which the beginning alone is written are one attribute.
    """
    module = receiver(call, "register_parameter")
    set_here = [*([module] if module is not None else []), *(arg.value for arg in call.args if not arg.star)]
    if (module is not None or dotted(call.func) == "setattr") and len(set_here) == 3:
        owner, name, value = set_here
        given = _looped(name, value, call, file)
        if given is not None:
            yield from _all_of(given, owner, file, expressions)
        elif begin := leading_text(name):
            text = begin if isinstance(name, cst.SimpleString) else f"{begin}?"
            yield from _set(owner, text, expressions.values(value, file), file, expressions)
        return
    namespace = _updated(call)
    if namespace is not None:
        for arg in call.args:
            if arg.keyword is not None:
                held = expressions.values(arg.value, file)
                yield from _set(namespace, arg.keyword.value, held, file, expressions)
            else:
                yield from _all_of(arg.value, namespace, file, expressions)


def _updated(call: cst.Call) -> cst.BaseExpression | None:
    """Return the object whose attributes a call updates."""
    held = receiver(call, "update")
    if isinstance(held, cst.Attribute) and held.attr.value == "__dict__":
        return held.value
    if isinstance(held, cst.Call) and dotted(held.func) == "vars" and len(held.args) == 1:
        return held.args[0].value
    return None


def _looped(
    name: cst.BaseExpression, value: cst.BaseExpression, call: cst.Call, file: SourceFile
) -> cst.BaseExpression | None:
    """Return the dict whose keys and values a loop around a call goes through, where it sets these."""
    for loop in (outer for outer in file.ancestors(call) if isinstance(outer, cst.For)):
        target, over = loop.target, loop.iter
        pair = [dotted(name), dotted(value)]
        if isinstance(target, cst.Tuple) and [dotted(e.value) for e in target.elements] == pair:
            return receiver(over, "items")
    return None


def _all_of(
    container: cst.BaseExpression, owner: cst.BaseExpression, file: SourceFile, expressions: Expressions
) -> Iterator[tuple[Variable, Values]]:
    """Yield the items of a dict with a known key as attributes of an object."""
    for held in expressions.values(container, file):
        for name in expressions.variables.names(held.key):
            key = name[2:-2]
            if name == item_name(key):
                yield from _set(owner, key, expressions.items.named(held, name), file, expressions)


def _set(
    owner: cst.BaseExpression, name: str, values: Values, file: SourceFile, expressions: Expressions
) -> Iterator[tuple[Variable, Values]]:
    for base in expressions.values(owner, file) if values else ():
        key = attribute_owner(base)
        if key is not None:
            yield expressions.classes.attribute(key, name), values
