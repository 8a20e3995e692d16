"""Numbers of a device behind the names that ``to()`` is given, where a program finds a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import libcst as cst

from ds_migrate.plain.dataflow.calls.callers import Callers
from ds_migrate.syntax.nodes import argument, code
from ds_migrate.syntax.source import SourceFile

_HAS_CUDA = frozenset({"torch.cuda.is_available()", "cuda.is_available()", "torch.accelerator.is_available()"})
_DEPTH = 4  # of names that are assigned, or given to functions


def numbers_of_move(call: cst.Call, file: SourceFile, callers: Callers) -> Iterator[tuple[SourceFile, cst.Integer]]:
    """Yield the numbers that a call of ``to()`` gets by a name, and that a condition on a GPU chooses."""
    given = argument(call, 0, "device")
    is_move = isinstance(call.func, cst.Attribute) and call.func.attr.value == "to"
    if is_move and given is not None and isinstance(given.value, (cst.Name, cst.Attribute)):
        for home, number in _numbers_behind(given.value, file, callers, _DEPTH):
            if _is_with_cuda(number, home):
                yield home, number


def _numbers_behind(
    node: cst.BaseExpression, file: SourceFile, callers: Callers, depth: int
) -> Iterator[tuple[SourceFile, cst.Integer]]:
    """Yield the numbers that an expression may have, by what names are assigned and functions are given."""
    if isinstance(node, cst.Integer):
        yield file, node
    elif isinstance(node, cst.IfExp):
        for part in (node.body, node.orelse):
            yield from _numbers_behind(part, file, callers, depth)
    elif isinstance(node, (cst.Name, cst.Attribute)) and depth:
        for value, home in callers.sources(node, file):
            yield from _numbers_behind(value, home, callers, depth - 1)


def _is_with_cuda(node: cst.Integer, file: SourceFile) -> bool:
    """Return whether an expression is reached only where a condition asks for a GPU, and finds one."""
    return any(
        isinstance(outer, (cst.If, cst.IfExp)) and part is outer.body and code(outer.test) in _HAS_CUDA
        for part, outer in pairwise([node, *file.ancestors(node)])
    )
