"""Classes of a program that step optimizers: in the place of a GradScaler or of an optimizer, or named by nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.recognition.facts import Refusal, Step
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import body_of, docstring, dotted, positional, receiver
from ds_migrate.syntax.one_line import expression_text
from ds_migrate.syntax.source import SourceFile

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


# Calls that may lead to a class by a name that is made when the program runs.
_BY_NAME = re.compile(
    rb"(?<![\w.])(?<!def )(?:(?:eval|exec|globals|__import__)\(|vars\([^)\n]*\)\[|getattr\([^,\n]*,(?!\s*[\"']))"
    rb"|\bimportlib\b|\b__dict__\["
)


def is_of_unnamed_class(node: cst.CSTNode, file: SourceFile, flow: Flow) -> bool:
    """Return whether a node is in a class that no file of a program names, in a file that trains without it.

    A class that calls ``backward()`` has a loop, which another program may run.
    """
    classes = [outer for outer in file.ancestors(node) if isinstance(outer, cst.ClassDef)]
    if not classes:
        return False
    return flow.once(_is_unnamed, classes[-1], file)


def _is_unnamed(flow: Flow, owner: cst.ClassDef, file: SourceFile) -> bool:
    has_bases = any(dotted(base.value) != "object" for base in owner.bases)
    if has_bases or owner.decorators or file.parent(owner) is not file.module:
        return False
    passes = file.attributes_by_name.get("backward", ())
    if not passes or any(outer is owner for one in passes for outer in file.ancestors(one)):
        return False
    word = re.compile(rb"\b%s\b" % owner.name.value.encode())
    data = [other.data for other in flow.files.values()]
    return sum(len(word.findall(each)) for each in data) == 1 and not any(map(_BY_NAME.search, data))
