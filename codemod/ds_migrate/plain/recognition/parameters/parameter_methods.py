"""Functions and methods of a program that return the parameters of modules."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from ds_migrate.plain.dataflow.calls.returned_tuples import is_plain_tuple
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import NOTHING, Kind, are_all, of_kind
from ds_migrate.plain.recognition.batches.passed_objects import Passed
from ds_migrate.plain.recognition.parameters.assigned_names import comes_later
from ds_migrate.plain.recognition.parameters.module_values import ASKED_OF_MODULES
from ds_migrate.plain.recognition.parameters.parameter_sources import UnknownOwnerError, shown
from ds_migrate.syntax.nodes import called_name, dotted, receiver, targets
from ds_migrate.syntax.source import SourceFile

CONTAINERS = frozenset(
    {"list", "tuple", "filter", "chain", "iter", "set", "from_iterable", "sorted", "reversed", "sum"}
)


def parameters_returned(call: cst.Call, file: SourceFile, flow: Flow) -> list[Passed]:
    """Return what a method of the program's returns that a call asks for parameters, in a class that is no module.

    Raises:
        UnknownOwnerError: what it returns cannot be followed.
    """
    held = flow.values(call.func.value, file) if isinstance(call.func, cst.Attribute) else NOTHING
    methods = of_kind(flow.values(call.func, file), Kind.METHOD) if are_all(held, Kind.INSTANCE) else NOTHING
    places = [(flow.file(method), flow.node(method)) for method in methods]
    found = [(owner, value) for owner, method in places for value in owner.returned(method)]
    known = [(owner, value) for owner, value in found if value is not None]
    is_yielded = any(owner.nodes(cst.Yield, below=method) for owner, method in places)
    if methods and (len(known) != 1 or len(found) != 1 or is_yielded):
        raise UnknownOwnerError(f"{shown(call)} is a method that does not return them in one place")
    return known


@dataclass(frozen=True)
class ReturnedItem:
    """An item of the tuple that a function returns, and the call that unpacks it."""

    call: cst.Call
    file: SourceFile
    item: cst.BaseExpression


def returned_items(node: cst.Name | cst.Attribute, file: SourceFile, flow: Flow) -> list[ReturnedItem]:
    """Return what functions return for a name that unpacks it: ``decay, others = split(model)``."""
    found = []
    for line in flow.scopes(file).nodes(node, cst.Assign):
        for target in targets(line) if isinstance(line.value, cst.Call) else ():
            names = [dotted(e.value) for e in target.elements] if isinstance(target, (cst.Tuple, cst.List)) else []
            if dotted(node) not in names or comes_later(line, node, file):
                continue
            call, index = cst.ensure_type(line.value, cst.Call), names.index(dotted(node))
            for function in of_kind(flow.values(call.func, file), Kind.FUNCTION, Kind.METHOD):
                made, home = flow.node(function), flow.file(function)
                for end in home.nodes(cst.Return, below=made):
                    if home.function(end) is not made:
                        continue
                    if not is_plain_tuple(end.value, len(names)) or home.nodes(cst.Yield, below=made):
                        return []
                    found.append(ReturnedItem(call, home, end.value.elements[index].value))
    return found


def modules_asked(node: cst.CSTNode, file: SourceFile, flow: Flow, depth: int = 3) -> list[cst.BaseExpression]:
    """Return the modules whose parameters are given as they are: ``list(model.named_parameters())``, also by a name."""
    if isinstance(node, cst.Name) and depth:
        scope = flow.scopes(file).owner(node.value, node)
        values = file.values_of({node.value}, scope)
        return modules_asked(values[0], file, flow, depth - 1) if len(values) == 1 else []
    if not isinstance(node, cst.Call):
        return []
    if (module := receiver(node, "parameters", "named_parameters")) is not None:
        return [module]
    args = node.args if called_name(node) in CONTAINERS else ()
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
