"""Steps of a name that holds an optimizer in one run, and in another an object that steps optimizers itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.recognition.facts import Refusal, Step
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.one_line import expression_text


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
