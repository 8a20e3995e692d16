"""Backward passes and steps that are no calls of a method: handed on, by a function of torch, or by name."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.recognition.facts import Refusal
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import argument, dotted
from ds_migrate.syntax.one_line import expression_text
from ds_migrate.syntax.source import SourceFile

_OPERATIONS = ("backward", "step")
_CALLERS = ("getattr", "methodcaller", "operator.methodcaller")
_FUNCTION = "torch.autograd.backward"
_UNBOUND = frozenset({"torch.Tensor.backward", "torch.optim.Optimizer.step"})


def find_indirect_calls(file: SourceFile, flow: Flow) -> Iterator[Refusal]:
    """Yield why calls that an engine's cannot replace keep a program as it is."""
    for call in file.nodes(cst.Call):
        if flow.is_call_of(call, file, {_FUNCTION}):
            losses = argument(call, 0, "tensors")
            if loss_given(call, file, flow) is not None:
                continue
            if losses is not None and of_kind(flow.values(losses.value, file), Kind.SEQUENCE):
                yield Refusal(
                    Code.PLAIN_UNTRACED, file, call, "torch.autograd.backward() takes several losses",
                    "add the losses and call backward() on the sum",
                )  # fmt: skip
            else:
                yield _refusal(call, file)
        elif _is_by_name(call) or flow.is_call_of(call, file, _UNBOUND):
            yield _refusal(call, file)
    for node in file.attributes_by_name.get("step", ()):
        around = file.parent(node)
        is_used = not (isinstance(around, cst.Call) and around.func is node) and not isinstance(
            around, cst.AssignTarget
        )
        if is_used and of_kind(flow.values(node.value, file), Kind.OPTIMIZER):
            yield _refusal(node, file)


def loss_given(call: cst.Call, file: SourceFile, flow: Flow) -> cst.BaseExpression | None:
    """Return the one loss that torch's function for a backward pass is given: ``torch.autograd.backward(loss)``."""
    if not isinstance(call.func, cst.Attribute) or not flow.is_call_of(call, file, {_FUNCTION}):
        return None
    loss, *others = call.args
    is_one = not loss.star and all(arg.keyword is not None and arg.keyword.value == "retain_graph" for arg in others)
    is_tensor = not of_kind(flow.values(loss.value, file), Kind.SEQUENCE, Kind.MAPPING)
    is_first = loss.keyword is None or loss.keyword.value == "tensors"
    return loss.value if is_one and is_tensor and is_first else None


def _is_by_name(call: cst.Call) -> bool:
    """Return whether a call gets a method by its name as a text: ``getattr(optimizer, "step")``."""
    name = call.args[-1].value if call.args and dotted(call.func) in _CALLERS else None
    return isinstance(name, cst.SimpleString) and name.evaluated_value in _OPERATIONS


def _refusal(node: cst.BaseExpression, file: SourceFile) -> Refusal:
    message = f"{expression_text(node)} is not a call that one of an engine could replace"
    return Refusal(Code.PLAIN_UNTRACED, file, node, message, "call loss.backward() and optimizer.step() themselves")
