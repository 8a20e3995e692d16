"""Methods by which a class that is no module hands out the parameters of the modules that it keeps."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.recognition.parameters.owners import Owners
from ds_migrate.plain.recognition.parameters.parameter_sources import UnknownOwnerError, shown
from ds_migrate.syntax.nodes import dotted
from ds_migrate.syntax.source import SourceFile


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
        if receiver != self.receiver or not rest:
            raise UnknownOwnerError(
                f"{text}, whose parameters a method of {self.holder} returns, is no attribute of it"
            )
        return f"{self.holder}.{rest}"


def parameter_method(call: cst.Call, file: SourceFile, flow: Flow) -> ParameterMethod | None:
    """Return the method that a call asks for parameters, where the program has it in a class that is no module.

    Raises:
        UnknownOwnerError: what it returns cannot be followed.
    """
    if not isinstance(call.func, cst.Attribute):
        return None
    held, methods = flow.values(call.func.value, file), of_kind(flow.values(call.func, file), Kind.METHOD)
    if not methods or not held or of_kind(held, Kind.INSTANCE) != held:
        return None
    holder, method = dotted(call.func.value), next(iter(methods))
    function, owner = flow.node(method), flow.file(method)
    if len(methods) > 1 or holder is None or not isinstance(function, cst.FunctionDef) or not function.params.params:
        raise UnknownOwnerError(f"{shown(call)} is a method of a class that is no module")
    returned = [n.value for n in owner.nodes(cst.Return, below=function) if owner.function(n) is function]
    if len(returned) != 1 or returned[0] is None or owner.nodes(cst.Yield, below=function):
        raise UnknownOwnerError(f"{shown(call)} is a method that does not return them in one place")
    return ParameterMethod(returned[0], owner, function.params.params[0].name.value, holder)
