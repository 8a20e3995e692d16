"""Loops that stay as they are beside one that is converted: on several ranks, what they train is not averaged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ds_migrate.findings import Severity
from ds_migrate.plain.dataflow.calls.callers import Callers
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.lookup.files_beside import files_beside, files_used
from ds_migrate.plain.decisions.plan import Note
from ds_migrate.plain.parts.part import Part
from ds_migrate.plain.recognition.facts import Place, Refusal
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.source import SourceFile

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
