"""Calls of a ``step()`` of the program's own: it moves weights without an optimizer, or is of a class in some runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, Value, of_kind
from ds_migrate.plain.recognition.facts import Backward, Refusal, Step
from ds_migrate.plain.recognition.steps.manual_updates import OWN_OPTIMIZER
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.one_line import expression_text
from ds_migrate.syntax.source import SourceFile

_DEPTH = 2  # functions that a method calls
_NO_WRITES = frozenset({"zero_", "detach_", "requires_grad_", "clip_grad_norm_", "clip_grad_value_"})


def find_hand_made_steps(
    steps: Sequence[Step], backwards: Sequence[Backward], refusals: Sequence[Refusal], flow: Flow
) -> Iterator[Refusal]:
    """Yield why loops stay whose backward pass is followed by a hand-made step alone.

    A method that just reads gradients, as to log them, is one where the program steps no optimizer at all.
    """
    stepping = {id(step.function or step.file.module) for step in steps}
    stepping |= {id(one.file.function(one.node) or one.file.module) for one in refusals}
    training = {id(backward.function or backward.file.module) for backward in backwards} - stepping
    for file in flow.files.values() if training else ():
        for node in file.attributes_by_name.get("step", ()):
            call = file.parent(node)
            if not isinstance(call, cst.Call) or call.func is not node:
                continue
            if id(file.function(node) or file.module) not in training:
                continue
            methods = of_kind(flow.values(node, file), Kind.METHOD)
            if methods and all(_is_by_hand(method, flow, writes=bool(steps)) for method in methods):
                yield Refusal(
                    Code.PLAIN_GRADIENTS, file, call,
                    "weights are updated from gradients by hand, without an optimizer", OWN_OPTIMIZER,
                )  # fmt: skip


def _is_by_hand(method: Value, flow: Flow, *, writes: bool) -> bool:
    """Return whether a method, or what it calls, reads gradients and steps nothing; where asked, it writes in place."""
    places = list(_run_by(flow.file(method), flow.node(method), flow, _DEPTH))
    attributes = [n for file, function in places for n in file.nodes(cst.Attribute, below=function)]
    names = {node.attr.value for node in attributes}
    has_writes = any(name.endswith("_") and name[0] != "_" for name in names - _NO_WRITES) or any(
        file.nodes(cst.AugAssign, below=function) for file, function in places
    )
    return "grad" in names and "backward" not in names and "step" not in names and (has_writes or not writes)


def _run_by(
    file: SourceFile, function: cst.CSTNode, flow: Flow, depth: int
) -> Iterator[tuple[SourceFile, cst.CSTNode]]:
    """Yield a function, and those of the program that it calls."""
    yield file, function
    for call in file.nodes(cst.Call, below=function) if depth else ():
        for value in of_kind(flow.values(call.func, file), Kind.FUNCTION, Kind.METHOD):
            if flow.node(value) is not function:
                yield from _run_by(flow.file(value), flow.node(value), flow, depth - 1)


def find_mixed_steps(steps: Sequence[Step], flow: Flow) -> Iterator[Refusal]:
    """Yield why an engine cannot take the place of what is stepped: there is none where the object is of a class."""
    stepping = {id(step.function) for step in steps if step.function is not None}
    for step in steps:
        if step.scaler is not None:
            continue
        for method in of_kind(flow.values(step.call.func, step.file), Kind.METHOD):
            function, file = flow.node(method), flow.file(method)
            owner = file.class_around(function) if id(function) in stepping else None
            if owner is None or not isinstance(owner, cst.ClassDef) or flow.classes.is_optimizer(owner, file):
                continue
            yield Refusal(
                Code.PLAIN_UNTRACED, step.file, step.node,
                f"{expression_text(step.owner)} is an optimizer in one run and a {owner.name.value}, which steps "
                "optimizers itself, in another",
                f"have {owner.name.value} hold the one optimizer too, so that one class steps in all runs",
            )  # fmt: skip
            break
