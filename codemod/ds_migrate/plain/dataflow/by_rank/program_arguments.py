"""Arguments that a program gets from its command, and the functions that a command runs."""

from __future__ import annotations

import libcst as cst

from ds_migrate.plain.dataflow.branches.dead_branches import is_test_file
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.syntax.nodes import decorators, last_name, receiver
from ds_migrate.syntax.source import SourceFile

_PARSERS = frozenset({"parse_args", "parse_known_args"})
_FLAGS = frozenset({"absl.flags.FLAGS"})


def is_command(function: cst.FunctionDef, flow: Flow) -> bool:
    """Return whether a program begins by a function: an installed one, or one such as ``@cli.command()`` makes."""
    return "command" in map(last_name, decorators(function)) or flow.is_command(function)


def needs_all_ranks(function: cst.FunctionDef, flow: Flow) -> bool:
    """Return whether a function makes an optimizer, or calls one that does: all ranks make the engine of it.

    A decorator may leave ranks out, and a test has one rank.
    """
    is_plain = {"classmethod", "staticmethod"}.issuperset(map(last_name, decorators(function)))
    return is_plain and id(function) in flow.once(_functions_of_engines)


def _functions_of_engines(flow: Flow) -> set[int]:
    makers = ((f, call) for f, call in flow.nodes(cst.Call) if of_kind(flow.values(call, f), Kind.OPTIMIZER))
    found, ahead = set[int](), [file.function(call) for file, call in makers if not is_test_file(file)]
    while ahead:
        function = ahead.pop()
        if function is not None and id(function) not in found:
            found.add(id(function))
            ahead += [f.function(call) for f, call in flow.callers.of(function) if not is_test_file(f)]
    return found


def is_arguments(node: cst.BaseExpression, file: SourceFile, flow: Flow) -> bool:
    """Return whether an expression is the result of ``parse_args()``, as it is or handed on."""
    if isinstance(node, cst.Call):
        return receiver(node, *_PARSERS) is not None
    if not isinstance(node, cst.Name):
        return False
    if any(value.name in _FLAGS for value in flow.values(node, file)):
        return True
    makers = [flow.node(v) for v in flow.values(node, file) if v.kind is Kind.OBJECT]
    return bool(makers) and all(isinstance(m, cst.Call) and is_arguments(m, file, flow) for m in makers)
