"""Calls of a program's functions that return parameters, and those that ask modules for theirs."""

from __future__ import annotations

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.recognition.parameters.module_lists import ASKED_OF_MODULES
from ds_migrate.syntax.nodes import dotted
from ds_migrate.syntax.source import SourceFile

CONTAINERS = frozenset(
    {"list", "tuple", "filter", "chain", "iter", "set", "from_iterable", "sorted", "reversed", "sum"}
)


def returned_here(call: cst.Call, file: SourceFile, flow: Flow) -> list[cst.BaseExpression]:
    """Return what a function returns that is defined beside the call and takes nothing: ``def trained(): ...``."""
    callees = of_kind(flow.values(call.func, file), Kind.FUNCTION)
    function = flow.node(next(iter(callees))) if len(callees) == 1 and not call.args else None
    if not isinstance(function, cst.FunctionDef) or function not in file.nodes(cst.FunctionDef):
        return []
    if file.function(function) is not file.function(call) or file.nodes(cst.Yield, cst.Assign, below=function):
        return []
    returned = [n.value for n in file.nodes(cst.Return, below=function) if n.value is not None]
    return returned if len(returned) == 1 else []


def modules_asked(node: cst.CSTNode, file: SourceFile, flow: Flow, depth: int = 3) -> list[cst.BaseExpression]:
    """Return the modules whose parameters are given as they are: ``list(model.named_parameters())``, also by a name."""
    if isinstance(node, cst.Name) and depth:
        scope = flow.scopes(file).owner(node.value, node)
        values = file.values_of({node.value}, scope)
        return modules_asked(values[0], file, flow, depth - 1) if len(values) == 1 else []
    if not isinstance(node, cst.Call):
        return []
    name = node.func.attr.value if isinstance(node.func, cst.Attribute) else dotted(node.func)
    if isinstance(node.func, cst.Attribute) and name in ("parameters", "named_parameters"):
        return [node.func.value]
    args = node.args if name in CONTAINERS else ()
    return [module for arg in args for module in modules_asked(arg.value, file, flow, depth - 1)]


def selects_parameters(call: cst.Call, file: SourceFile, flow: Flow) -> bool:
    """Return whether a method may return no other tensors than parameters of its module.

    What it keeps in a list may be in no module: the weights of operations that an architecture search learns.
    """
    methods = of_kind(flow.values(call.func, file), Kind.METHOD, Kind.FUNCTION)
    return not methods or all(
        any(
            node.attr.value in ASKED_OF_MODULES
            for node in flow.file(method).nodes(cst.Attribute, below=flow.node(method))
        )
        for method in methods
    )
