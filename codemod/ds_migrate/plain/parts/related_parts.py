"""Parts of a program that train one model, and loops that stay as they are beside one that is converted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from ds_migrate.findings import Severity
from ds_migrate.plain.dataflow.calls.callers import Callers
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.lookup.files_beside import files_beside, files_used
from ds_migrate.plain.dataflow.torch_names import NO_GRAD
from ds_migrate.plain.dataflow.values import Kind, Value, Values, of_kind
from ds_migrate.plain.decisions.plan import Note
from ds_migrate.plain.parts.part import Part
from ds_migrate.plain.recognition.facts import Operations, Place, Refusal
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.source import SourceFile

_MODES = NO_GRAD - {"torch.set_grad_enabled"}
_DEPTH = 3  # of functions that compute a loss
_Code = tuple[SourceFile, cst.FunctionDef | None]


def merge_sharing(parts: Sequence[Part], operations: Operations, flow: Flow) -> list[Part]:
    """Return the parts, with those in one that may train the same model.

    A backward pass through a model of another part leaves gradients there, which ``zero_grad()`` of that part clears.
    Functions that nothing calls leave none.
    """
    merged: list[tuple[Part, Values]] = []
    for part in parts:
        may_run = len(parts) > 1 and not part.is_idle(flow)
        found, reached = part, _reached(part, operations, flow) if may_run else frozenset()
        rest: list[tuple[Part, Values]] = []
        for other, other_reached in merged:
            if _meet(_trained(found), other_reached, flow) or _meet(_trained(other), reached, flow):
                found, reached = _joined(other, found), reached | other_reached
            else:
                rest.append((other, other_reached))
        merged = [*rest, (found, reached)]
    return [part for part, _ in merged]


def _joined(one: Part, other: Part) -> Part:
    files = sorted({*one.files, *other.files}, key=lambda file: str(file.path))
    return Part(files, one.steps + other.steps, one.refusals + other.refusals, sites=one.sites + other.sites)


def _trained(part: Part) -> Values:
    return frozenset(value for site in part.sites for value in site.of)


def _reached(part: Part, operations: Operations, flow: Flow) -> Values:
    """Return the models that a part steps, and those that its functions with a backward pass run with gradients.

    The functions that these call count too: one computes the loss.
    """
    passes = [backward for backward in operations.backwards if backward.file in part.files]
    level: set[_Code] = {(backward.file, backward.function) for backward in passes}
    seen, values = set[_Code](), set[Value]()
    for _ in range(_DEPTH):
        seen |= level
        found = [value for file, function in level for value in _run(file, function, flow)]
        values.update(found)
        called = (flow.function_of(value.key) for value in found if value.kind in (Kind.FUNCTION, Kind.METHOD))
        level = set[_Code](one for one in called if one is not None and not _has_no_gradients(*one, flow)) - seen
    return _trained(part) | of_kind(frozenset(values), Kind.MODULE, Kind.OBJECT)


def _run(file: SourceFile, function: cst.FunctionDef | None, flow: Flow) -> Iterator[Value]:
    """Yield what calls in a function run with gradients, and the objects whose methods they are."""
    for call in file.nodes(cst.Call, below=function if function is not None else file.module):
        if not _is_without_gradients(call, file, flow):
            yield from flow.values(call.func, file)
            yield from flow.values(getattr(call.func, "value", call.func), file)


def _has_no_gradients(file: SourceFile, function: cst.FunctionDef, flow: Flow) -> bool:
    """Return whether a function is decorated by ``torch.no_grad()``."""
    return any(
        isinstance(one.decorator, cst.Call) and flow.is_call_of(one.decorator, file, _MODES)
        for one in function.decorators
    )


def _is_without_gradients(call: cst.Call, file: SourceFile, flow: Flow) -> bool:
    modes = (item.item for outer in file.ancestors(call) if isinstance(outer, cst.With) for item in outer.items)
    return any(isinstance(mode, cst.Call) and flow.is_call_of(mode, file, _MODES) for mode in modes)


def _meet(trained: Values, reached: Values, flow: Flow) -> bool:
    return any(flow.copies.may_be_one(one, other) for one in trained for other in reached)


_MOST_NAMES = 3  # that a review lists
_STEPS = (Code.PLAIN_UNTRACED, Code.PLAIN_CLOSURE, Code.PLAIN_BACKWARD, Code.PLAIN_PRECISION)


def review_loops_beside(parts: Sequence[Part], flow: Flow) -> None:
    """Add a review to a loop that is converted where others stay that may run with it, or on its model or data."""
    staying = [
        (part, files_used(part.files, flow), _entries(part, flow.callers))
        for part in parts
        if part.stays and not part.is_idle(flow)
    ]
    for part in [part for part in parts if not part.stays] if staying else []:
        models = {value for site in part.sites for value in site.of}
        divided = {
            id(note.file) for severity, note in part.notes
            if severity is Severity.CONVERTED and note.code is Code.PLAIN_SAMPLER
        }  # fmt: skip
        entries, beside = _entries(part, flow.callers), {id(file) for file in files_beside(part.files, flow)}
        found = [
            place
            for other, used, from_where in staying
            if (place := next(_training(other), None)) is not None
            and (
                any(models & site.of for site in other.sites)
                or divided & used
                or entries & from_where
                or (any(r.code is Code.PLAIN_UNTRACED for r in other.refusals) and id(place.file) in beside)
            )
        ]
        if found:
            step = part.steps[0]
            message = (
                f"not converted, and may run beside this loop: {_listed(found)}; on several ranks, what is "
                "trained there is not averaged"
            )
            advice = "resolve what the findings there name, or run it by itself on one rank"
            part.notes.append((Severity.REVIEW, Note(Code.PLAIN_BACKWARD, step.file, step.node, message, advice)))


def _listed(places: Sequence[Place | Refusal]) -> str:
    names = sorted(f"{place.file.path.name}:{place.file.reported_position(place.node)[0]}" for place in places)
    return ", ".join(names[:_MOST_NAMES]) + (f" and {len(names) - _MOST_NAMES} more" * (len(names) > _MOST_NAMES))


def _training(part: Part) -> Iterator[Place | Refusal]:
    """Yield where a loop trains, as far as that is known."""
    yield from part.steps
    yield from (refusal for refusal in part.refusals if refusal.code in _STEPS)
    yield from part.operations.backwards if part.operations is not None else ()


def _entries(part: Part, callers: Callers) -> set[int]:
    """Return the functions and modules from which a loop is reached, by identity."""
    places: list[tuple[SourceFile, Place | Refusal]] = [(place.file, place) for place in _training(part)]
    return {key for file, place in places for key in callers.leading(file, file.function(place.node))}
