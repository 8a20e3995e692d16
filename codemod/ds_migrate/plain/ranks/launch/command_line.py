"""Arguments of the command line that a launcher moves or leaves out: those read by position, and the rank's number."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.torch_names import INIT
from ds_migrate.syntax.nodes import argument, code, dotted, number, targets, walk
from ds_migrate.syntax.source import SourceFile

_DEPTH = 4  # calls of calls


def names_added(call: cst.Call) -> set[str]:
    """Return the names of the argument that a call of ``add_argument()`` adds."""
    is_added = isinstance(call.func, cst.Attribute) and call.func.attr.value == "add_argument"
    texts = [arg.value for arg in call.args if isinstance(arg.value, cst.SimpleString) and not arg.keyword]
    return {str(text.evaluated_value) for text in texts} if is_added else set()


def default_number(call: cst.Call) -> cst.BaseExpression | None:
    """Return the number that an argument has where it is not given."""
    default = argument(call, None, "default")
    is_number = default is not None and re.fullmatch(r"-?\d+", code(default.value))
    return default.value if default is not None and is_number else None


def is_number_of_rank(call: cst.Call, flow: Flow) -> bool:
    """Return whether a call of ``add_argument()`` adds what the program hands ``init_process_group()`` as the rank.

    One that the program computes from the argument is another: that may be the number of a node.
    """
    names = names_added(call)
    given = argument(call, None, "dest")
    if given is not None and isinstance(given.value, cst.SimpleString):
        names = {str(given.value.evaluated_value)}
    names = {name.lstrip("-").replace("-", "_") for name in names}
    return any(
        attribute.attr.value in names and not _is_changed(attribute, flow)
        for file, init in flow.nodes(cst.Call)
        if flow.is_call_of(init, file, INIT) and (rank := argument(init, None, "rank")) is not None
        for attribute in _attributes(rank.value, file, flow, _DEPTH)
    )


def _attributes(node: cst.BaseExpression, file: SourceFile, flow: Flow, depth: int) -> Iterator[cst.Attribute]:
    """Yield the attributes that an expression gets its value from, through parameters of functions."""
    if isinstance(node, cst.Attribute):
        yield node
    scope = flow.scopes(file).owner(node.value, node) if isinstance(node, cst.Name) else None
    if not isinstance(node, cst.Name) or not isinstance(scope, cst.FunctionDef) or not depth:
        return
    for value in file.values_of({node.value}, scope):
        yield from _attributes(value, file, flow, depth - 1)
    for caller, call in flow.callers.of(scope):
        arg = flow.given(call, scope, node.value, caller)
        if arg is not None and not arg.star:
            yield from _attributes(arg.value, caller, flow, depth - 1)


def _is_changed(attribute: cst.Attribute, flow: Flow) -> bool:
    """Return whether the program assigns an attribute, where objects do not assign their own."""
    return any(
        isinstance(target, cst.Attribute)
        and target.attr.value == attribute.attr.value
        and dotted(target.value) not in ("self", "cls")
        for file, line in flow.nodes(cst.Assign, cst.AnnAssign, cst.AugAssign)
        for target in targets(line)
    )


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
