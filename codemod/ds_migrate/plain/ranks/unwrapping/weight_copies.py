"""Copies of a model's weights, as averages and teachers begin with."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, Values, of_kind
from ds_migrate.syntax.nodes import last_name
from ds_migrate.syntax.source import SourceFile

_WEIGHTS = frozenset({"parameters", "named_parameters", "state_dict"})
_WRITES = frozenset({"copy_", "mul_", "add_", "sub_", "lerp_"})


def copies_weights(modules: Values, flow: Flow) -> bool:
    """Return whether a program copies the weights of these modules into others: ranks must hold the same by then."""
    return any(
        _is_copy(call, file, modules, flow) for file in flow.files.values() for call in file.nodes(cst.Call)
    ) or any(_mixes(file, modules, flow) for file in flow.files.values())


def _is_copy(call: cst.Call, file: SourceFile, modules: Values, flow: Flow) -> bool:
    name = last_name(call.func)
    given = [arg.value for arg in call.args]
    if (
        name == "deepcopy"
        or "ema" in name.lower().split("_")
        or "EMA" in name
        or name.endswith(("Ema", "AveragedModel"))
    ):
        return any(flow.values(arg, file) & modules for arg in given)
    if name == "load_state_dict" and isinstance(call.func, cst.Attribute):
        own = any(values & modules for arg in given for values in _weights_below(arg, file, flow))
        return own and not flow.values(call.func.value, file) & modules
    return False


def _mixes(file: SourceFile, modules: Values, flow: Flow) -> bool:
    """Return whether a function writes to weights in place, and has those of these modules and of another one."""
    for function in file.nodes(cst.FunctionDef):
        if not any(name in _WRITES for name in _methods(function, file)):
            continue
        held = list(_weights_below(function, file, flow))
        if any(values & modules for values in held) and any(values and not values & modules for values in held):
            return True
    return False


def _methods(node: cst.CSTNode, file: SourceFile) -> Iterator[str]:
    yield from (n.func.attr.value for n in file.nodes(cst.Call, below=node) if isinstance(n.func, cst.Attribute))


def _weights_below(node: cst.CSTNode, file: SourceFile, flow: Flow) -> Iterator[Values]:
    """Yield the modules whose weights are asked for below a node."""
    for call in file.nodes(cst.Call, below=node):
        if isinstance(call.func, cst.Attribute) and call.func.attr.value in _WEIGHTS:
            yield of_kind(flow.values(call.func.value, file), Kind.MODULE, Kind.OBJECT, Kind.PART)
