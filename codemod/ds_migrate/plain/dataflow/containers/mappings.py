"""Expressions that make a dict or list: ``{"model": model}``, and ``dict(model=model)`` or ``OrderedDict()`` too."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.syntax.nodes import dotted, single_index

_MAKERS = frozenset({"dict", "OrderedDict", "collections.OrderedDict"})


def is_mapping_call(node: cst.CSTNode | None) -> bool:
    """Return whether a call makes a dict whose items are all given by keywords."""
    is_call = isinstance(node, cst.Call) and dotted(node.func) in _MAKERS
    return is_call and isinstance(node, cst.Call) and all(arg.keyword is not None for arg in node.args)


def keyword_items(call: cst.Call) -> Iterator[tuple[str, cst.BaseExpression]]:
    """Yield the keys of a dict that a call makes, with their values."""
    for arg in call.args if is_mapping_call(call) else ():
        if arg.keyword is not None:
            yield arg.keyword.value, arg.value


def display_items(node: cst.CSTNode) -> Iterator[tuple[str | int | None, cst.BaseExpression]]:
    """Yield what an expression puts into a container, with the index of each; None where that is not written."""
    if isinstance(node, cst.Dict):
        for pair in node.elements:
            key = pair.key if isinstance(pair, cst.DictElement) else None
            yield (_literal(key) if isinstance(key, cst.SimpleString) else None), pair.value
    elif isinstance(node, (cst.List, cst.Tuple)):
        starred = any(isinstance(element, cst.StarredElement) for element in node.elements)
        yield from ((None if starred else index, element.value) for index, element in enumerate(node.elements))
    elif isinstance(node, cst.Call):
        yield from keyword_items(node)


def named_items(node: cst.CSTNode | None) -> dict[str, cst.BaseExpression] | None:
    """Return the items of a dict by their keys; None where one of these is no literal, and for anything else."""
    if node is None or not (isinstance(node, cst.Dict) or is_mapping_call(node)):
        return None
    named = {key: value for key, value in display_items(node) if isinstance(key, str)}
    return named if len(named) == len(list(display_items(node))) else None


def literal_index(node: cst.Subscript) -> str | int | None:
    """Return the index of an item, where it is a literal."""
    value = single_index(node)
    return _literal(value) if isinstance(value, (cst.SimpleString, cst.Integer)) else None


def _literal(node: cst.SimpleString | cst.Integer) -> str | int | None:
    value = node.evaluated_value
    return value if isinstance(value, (str, int)) else None
