"""Generators of a program: functions that make the items of loops one by one."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.syntax.nodes import walk
from ds_migrate.syntax.source import SourceFile


def generators(over: cst.CSTNode, file: SourceFile, flow: Flow) -> Iterator[tuple[SourceFile, cst.FunctionDef]]:
    """Yield the functions of the program that make the items of what a loop runs over."""
    for part in walk(over):
        if not isinstance(part, (cst.Name, cst.Attribute, cst.Call)):
            continue
        methods = (flow.classes.method(v.key, "__iter__") for v in of_kind(flow.values(part, file), Kind.INSTANCE))
        called = [part] if isinstance(part, cst.Call) else flow.scopes(file).assigned(part)
        functions = {method for method in methods if method is not None}.union(
            *(of_kind(flow.values(call.func, file), Kind.FUNCTION, Kind.METHOD)
              for call in called if isinstance(call, cst.Call))
        )  # fmt: skip
        for value in flow.in_order(frozenset(functions)):
            function, home = flow.node(value), flow.file(value)
            if isinstance(function, cst.FunctionDef) and home.nodes(cst.Yield, below=function):
                yield home, function
