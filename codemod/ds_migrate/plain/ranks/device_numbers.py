"""Numbers of devices: those behind the names that ``to()`` is given, and those by which a program chooses a GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

import libcst as cst

from ds_migrate.plain.dataflow.calls.callers import Callers
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.scopes import names_in
from ds_migrate.plain.recognition.several_devices import device_text
from ds_migrate.syntax.nodes import argument, code, dotted, last_name
from ds_migrate.syntax.source import SourceFile

_HAS_CUDA = frozenset({"torch.cuda.is_available()", "cuda.is_available()", "torch.accelerator.is_available()"})
_NAME = re.compile(r"(cuda|cpu|mps):?")
_DEPTH = 4  # of names that are assigned, or given to functions


def numbers_of_move(call: cst.Call, file: SourceFile, callers: Callers) -> Iterator[tuple[SourceFile, cst.Integer]]:
    """Yield the numbers that a call of ``to()`` gets by a name, and that a condition on a GPU chooses."""
    given = argument(call, 0, "device")
    is_move = isinstance(call.func, cst.Attribute) and call.func.attr.value == "to"
    if is_move and given is not None and isinstance(given.value, (cst.Name, cst.Attribute)):
        for home, number in _numbers_behind(given.value, file, callers, _DEPTH):
            if _is_with_cuda(number, home):
                yield home, number


def chosen_number(node: cst.BaseExpression, file: SourceFile, flow: Flow) -> str | None:
    """Return the number of the GPU that a device, or a call that is given one, chooses; None for the first or any."""
    number = _number_of(node)
    if number is None or _is_first(number, file, flow, _DEPTH):
        return None
    return _NAME.sub("", device_text(number)) if isinstance(number, cst.SimpleString) else code(number)


def _number_of(node: cst.BaseExpression) -> cst.BaseExpression | None:
    """Return what has the number of a device: ``"cuda:1"``, or ``n`` of ``f"cuda:{n}"`` and ``set_device(n)``."""
    if isinstance(node, cst.FormattedString):
        return next((part.expression for part in node.parts if isinstance(part, cst.FormattedStringExpression)), None)
    if isinstance(node, cst.BinaryOperation):
        return node.right
    if not isinstance(node, cst.Call):
        return node
    index = argument(node, 1, "index") if last_name(node.func) == "device" else None
    given = index or (node.args[0] if node.args else None)
    return given.value if given is not None else None


def _is_first(node: cst.BaseExpression, file: SourceFile, flow: Flow, depth: int) -> bool:
    """Return whether a device or its number can only be the first, one that a loop counts, or any that there is."""
    if isinstance(node, cst.Integer):
        return code(node) == "0"
    if isinstance(node, cst.SimpleString):
        return _NAME.sub("", device_text(node)) in ("", "0")
    if isinstance(node, cst.IfExp):
        return all(_is_first(part, file, flow, depth) for part in (node.body, node.orelse))
    if isinstance(node, cst.Call) and flow.is_call_of(node, file, ("torch.device",)):
        number = _number_of(node)
        return number is None or _is_first(number, file, flow, depth)
    if not isinstance(node, (cst.Name, cst.Attribute)) or not depth:
        return False
    if any(dotted(node) in names_in(loop.target) for loop in file.ancestors(node) if isinstance(loop, cst.For)):
        return True
    sources = list(flow.callers.sources(node, file))
    return bool(sources) and all(_is_first(value, home, flow, depth - 1) for value, home in sources)


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
