"""Classes of a program that take the place of a GradScaler where there is none, and leave losses and steps alone."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.recognition.facts import Refusal, Step
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import body_of, docstring, dotted, positional, receiver

_METHODS = ("scale", "unscale_", "step", "update")


def without_stand_ins(steps: Sequence[Step], flow: Flow) -> tuple[list[Step], list[Refusal]]:
    """Return the steps without those inside such classes: an engine calls ``step()`` of the object that it is given.

    Also return why the steps of a class stay that takes the place of a GradScaler, and does something else.
    """
    scalers = (value for s in steps if s.scaler is not None for value in flow.values(s.scaler, s.file))
    known = [flow.class_of(value.key) for value in of_kind(frozenset(scalers), Kind.INSTANCE)]
    classes = [owner[1] for owner in known if owner is not None]
    inside = [(step, owner) for step in steps if (owner := step.file.class_around(step.node)) in classes]
    refusals = [
        Refusal(
            Code.PLAIN_PRECISION, step.file, step.node,
            f"{owner.name.value} takes the place of a GradScaler, and does not leave losses, gradients and steps alone",
            "use torch.amp.GradScaler(enabled=False) in its place",
        )
        for step, owner in inside
        if not is_stand_in(owner)
    ]  # fmt: skip
    left = {id(step) for step, _ in inside}
    return [step for step in steps if id(step) not in left], refusals


def is_stand_in(node: cst.ClassDef | None) -> bool:
    """Return whether ``scale()`` of a class returns its loss, ``step()`` only steps, and the others do nothing."""
    methods = {m.name.value: m for m in (body_of(node) if node is not None else ()) if isinstance(m, cst.FunctionDef)}
    return all(name in methods and _leaves_alone(methods[name]) for name in _METHODS)


def _leaves_alone(method: cst.FunctionDef) -> bool:
    lines = [line for line in body_of(method) if line is not docstring(method)]
    small = [one for line in lines for one in (line.body if isinstance(line, cst.SimpleStatementLine) else [line])]
    results = [one.value for one in small if isinstance(one, (cst.Return, cst.Expr))]
    if len(results) + sum(isinstance(one, cst.Pass) for one in small) != len(small):
        return False
    given = [param.name.value for param in positional(method)[1:2]]
    if method.name.value == "scale":
        return len(small) == 1 and isinstance(small[0], cst.Return) and dotted(results[0]) in given
    if method.name.value == "step":
        return len(results) == 1 and dotted(receiver(results[0], "step")) in given
    return all(result is None or dotted(result) == "None" for result in results)
