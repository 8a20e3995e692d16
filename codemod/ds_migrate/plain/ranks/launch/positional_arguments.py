"""Arguments of the command line that a program reads by their positions: a launcher's argument moves them."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.syntax.nodes import dotted, number, targets, walk
from ds_migrate.syntax.source import SourceFile

_ARGUMENTS = "sys.argv"


def reads_by_position(file: SourceFile, flow: Flow) -> Iterator[cst.CSTNode]:
    """Yield what takes an argument by its position, counts the arguments, or parses them by ``getopt``."""
    if b"argv" not in file.data:
        return
    for node in file.nodes(cst.Subscript):
        if flow.is_named(node.value, file, _ARGUMENTS) and any(
            isinstance(element.slice, cst.Index) and (number(element.slice.value) or 0) > 0 for element in node.slice
        ):
            yield node
    for call in file.nodes(cst.Call):
        is_counted = dotted(call.func) == "len" or flow.is_call_of(call, file, ("getopt.getopt", "getopt.gnu_getopt"))
        if is_counted and any(_holds(arg.value, file, flow) for arg in call.args[:1]):
            yield call
    for line in file.nodes(cst.Assign):
        if any(isinstance(target, cst.Tuple) for target in targets(line)):
            value = line.value.value if isinstance(line.value, cst.Subscript) else line.value
            if flow.is_named(value, file, _ARGUMENTS):
                yield line


def _holds(node: cst.BaseExpression, file: SourceFile, flow: Flow) -> bool:
    parts = (part for part in walk(node) if isinstance(part, (cst.Name, cst.Attribute)))
    return any(flow.is_named(part, file, _ARGUMENTS) for part in parts)
