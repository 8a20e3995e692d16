"""Functions and methods of a program that return the parameters of modules."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from ds_migrate.plain.dataflow.calls.returned_tuples import is_plain_tuple
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, are_all, of_kind
from ds_migrate.plain.recognition.parameters.assigned_names import comes_later
from ds_migrate.plain.recognition.parameters.module_values import ASKED_OF_MODULES
from ds_migrate.plain.recognition.parameters.owners import Owners
from ds_migrate.plain.recognition.parameters.parameter_sources import UnknownOwnerError, shown
from ds_migrate.syntax.nodes import called_name, dotted, receiver, targets
from ds_migrate.syntax.source import SourceFile

CONTAINERS = frozenset(
    {"list", "tuple", "filter", "chain", "iter", "set", "from_iterable", "sorted", "reversed", "sum"}
)


@dataclass(frozen=True)
class ParameterMethod:
    """A method that returns parameters, with the names of its object inside and outside of the class."""

    returned: cst.BaseExpression
    file: SourceFile
    receiver: str
    holder: str

    def add_to(self, owners: Owners, found: Owners) -> None:
        """Add modules that the method finds by its own names, as attributes of the object.

        Raises:
            UnknownOwnerError: one is no attribute of the object.
        """
        for text, values in found.values.items():
            owners.values[self._outside(text)] = values
        for text, values in found.tensors.items():
            owners.tensors[self._outside(text)] = values
        owners.has_wholes = True
        owners.is_partial |= found.is_partial or found.filters.is_partial

    def _outside(self, text: str) -> str:
        receiver, _, rest = text.partition(".")
        if receiver != self.receiver:
            raise UnknownOwnerError(
                f"{text}, whose parameters a method of {self.holder} returns, is no attribute of it"
            )
        return f"{self.holder}.{rest}" if rest else self.holder


def parameter_method(call: cst.Call, file: SourceFile, flow: Flow) -> ParameterMethod | None:
    """Return the method that a call asks for parameters, where the program has it in a class that is no module.

    Raises:
        UnknownOwnerError: what it returns cannot be followed.
    """
    if not isinstance(call.func, cst.Attribute):
        return None
    held, methods = flow.values(call.func.value, file), of_kind(flow.values(call.func, file), Kind.METHOD)
    if not methods or not are_all(held, Kind.INSTANCE):
        return None
    holder, method = dotted(call.func.value), next(iter(methods))
    function, owner = flow.node(method), flow.file(method)
    if len(methods) > 1 or holder is None or not isinstance(function, cst.FunctionDef) or not function.params.params:
        raise UnknownOwnerError(f"{shown(call)} is a method of a class that is no module")
    returned = owner.returned(function)
    if len(returned) != 1 or returned[0] is None or owner.nodes(cst.Yield, below=function):
        raise UnknownOwnerError(f"{shown(call)} is a method that does not return them in one place")
    return ParameterMethod(returned[0], owner, function.params.params[0].name.value, holder)


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
