"""Tuples that functions return, as written, for the names that unpack them."""

from __future__ import annotations

from typing import TypeGuard

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow


def is_plain_tuple(node: cst.BaseExpression | None, count: int) -> TypeGuard[cst.Tuple]:
    """Return whether an expression is a tuple of so many items, none of them with a star."""
    if not isinstance(node, cst.Tuple) or len(node.elements) != count:
        return False
    return all(isinstance(element, cst.Element) for element in node.elements)


def returns_tuples(function: int, count: int, flow: Flow) -> bool:
    """Return whether all that a function returns, by its identity, are tuples of so many items."""
    known = flow.node_of(function)
    returned = known[0].returned(known[1]) if known is not None else []
    return bool(returned) and all(is_plain_tuple(value, count) for value in returned)
