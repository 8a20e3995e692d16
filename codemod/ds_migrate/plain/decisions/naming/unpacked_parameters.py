"""Parameters that a function unpacks: ``first, second = optimizers``."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.syntax.nodes import parameters, targets
from ds_migrate.syntax.source import SourceFile


@dataclass(frozen=True, eq=False)
class UnpackedParameter:
    """A name that a function unpacks from a parameter, which every caller gives as a list.

    Attributes:
        name: the name in the statement that unpacks.
        given: what the callers give for it, with their files.
    """

    function: cst.FunctionDef
    name: cst.Name
    given: list[tuple[SourceFile, cst.Element]]


def unpacked_parameter(
    node: cst.Name, assign: cst.Assign | cst.AnnAssign, file: SourceFile, flow: Flow
) -> UnpackedParameter | None:
    """Return what an assignment unpacks for a name; None where the parameter has other uses, or is given otherwise."""
    function, parameter, target = file.function(assign), assign.value, targets(assign)[0]
    if function is None or not isinstance(parameter, cst.Name) or not isinstance(target, (cst.Tuple, cst.List)):
        return None
    uses = [name for name in file.nodes(cst.Name, below=function.body) if name.value == parameter.value]
    if parameter.value not in {p.name.value for p in parameters(function)} or uses != [parameter]:
        return None
    found: list[tuple[SourceFile, cst.Element]] = []
    names = [element.value for element in target.elements if isinstance(element, cst.Element)]
    (name,) = (each for each in names if isinstance(each, cst.Name) and each.value == node.value)
    for caller, call in flow.callers.of(function):
        arg = flow.given(call, function, parameter.value, caller)
        listed = arg.value.elements if arg is not None and isinstance(arg.value, (cst.Tuple, cst.List)) else ()
        elements = [element for element in listed if isinstance(element, cst.Element)]
        if not len(target.elements) == len(names) == len(elements) == len(listed):
            return None
        found.append((caller, elements[names.index(name)]))
    return UnpackedParameter(function, name, found) if found else None
