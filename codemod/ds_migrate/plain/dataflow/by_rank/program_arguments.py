"""Arguments that a program gets from its command, and the functions that a command runs."""

from __future__ import annotations

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind
from ds_migrate.syntax.nodes import decorators, last_name, receiver
from ds_migrate.syntax.source import SourceFile

_PARSERS = frozenset({"parse_args", "parse_known_args"})
_FLAGS = frozenset({"absl.flags.FLAGS"})


def is_command(function: cst.FunctionDef, flow: Flow) -> bool:
    """Return whether a program begins by a function: an installed one, or one such as ``@cli.command()`` makes."""
    return "command" in map(last_name, decorators(function)) or flow.is_command(function)


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
