"""Calls that clip gradients, by whatever name the program calls the function of torch."""

from __future__ import annotations

import builtins

import libcst as cst

from ds_migrate.plain.dataflow.calls.partial_calls import PARTIAL
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.torch_names import clips_gradients
from ds_migrate.plain.dataflow.values import Kind, Values, of_kind
from ds_migrate.syntax.nodes import receiver, walk
from ds_migrate.syntax.source import SourceFile

_BY_NAME = "torch.nn.utils.?"  # as of getattr(nn.utils, "clip_grad_" + kind + "_")


def is_clip(call: cst.Call, file: SourceFile, flow: Flow) -> bool:
    """Return whether a call may clip gradients, as one of ``partial(clip_grad_norm_, max_norm=1.0)`` does.

    A function that cannot be followed may, where it is given parameters right before a step.
    """
    found = flow.values(call.func, file)
    for value in of_kind(found, Kind.OBJECT):
        if value.name == PARTIAL:
            found |= _function_of(flow.node(value), flow.file(value), flow)
    if any(clips_gradients(v.name) for v in of_kind(found, Kind.EXTERNAL)):
        return True
    is_builtin = isinstance(call.func, cst.Name) and hasattr(builtins, call.func.value)
    is_unknown = not (found or is_builtin) or any(value.name == _BY_NAME for value in found)
    return is_unknown and _takes_parameters(call) and _is_before_step(call, file, flow)


def _function_of(made: cst.CSTNode, file: SourceFile, flow: Flow) -> Values:
    first = made.args[0] if isinstance(made, cst.Call) and made.args else None
    return flow.values(first.value, file) if first is not None and not first.star else frozenset()


def _takes_parameters(call: cst.Call) -> bool:
    return any(receiver(node, "parameters") is not None for arg in call.args for node in walk(arg.value))


def _is_before_step(call: cst.Call, file: SourceFile, flow: Flow) -> bool:
    """Return whether an optimizer steps behind a call, in its block or one around that, by the gradients there are."""
    function, position = file.function(call), file.position(call)
    blocks = {id(outer) for outer in file.ancestors(call)}
    steps = [
        file.position(node) for node in file.attributes_by_name.get("step", ())
        if file.function(node) is function and file.position(node) > position
        and id(file.parent(file.statement(node))) in blocks and of_kind(flow.values(node.value, file), Kind.OPTIMIZER)
    ]  # fmt: skip
    between = [
        other for other in file.nodes(cst.Call, below=function or file.module)
        if steps and position < file.position(other) < min(steps)
    ]  # fmt: skip
    training = flow.once(_passing_backward) if between else frozenset()
    return bool(steps) and not any(_passes_backward(other, file, flow, training) for other in between)


def _passes_backward(call: cst.Call, file: SourceFile, flow: Flow, training: frozenset[int]) -> bool:
    is_backward = receiver(call, "backward") is not None
    return is_backward or any(value.key in training for value in flow.values(call.func, file))


def _passing_backward(flow: Flow) -> frozenset[int]:
    """Return the functions that lead to a backward pass, by identity."""
    places = flow.attributes("backward")
    return frozenset(key for file, node in places for key in flow.callers.leading(file, file.function(node)))
