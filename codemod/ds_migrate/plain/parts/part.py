"""The parts of a program: files that share optimizers, which are converted together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ds_migrate.findings import Severity
from ds_migrate.plain.dataflow.calls.callers import Callers
from ds_migrate.plain.dataflow.calls.idle_functions import idle_functions
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.lookup.files_beside import files_used
from ds_migrate.plain.dataflow.values import Values
from ds_migrate.plain.decisions.plan import Note
from ds_migrate.plain.recognition.creation.sites import find_sites
from ds_migrate.plain.recognition.facts import Operations, Place, Refusal, Site, Step, optimizers_of
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.source import SourceFile


@dataclass
class Part:
    """Files of a program that share optimizers.

    Attributes:
        is_skipped: whether a comment leaves them as they are.
        changed: the files that its conversion changes, those of others too.
        guarded: those of them in which nothing but output changes, so that rank 0 alone makes it.
        configs: the files to write beside them, with their text.
    """

    files: list[SourceFile]
    steps: list[Step]
    refusals: list[Refusal] = field(default_factory=list)
    sites: list[Site] = field(default_factory=list)
    operations: Operations | None = None
    is_skipped: bool = False
    notes: list[tuple[Severity, Note]] = field(default_factory=list)
    changed: list[SourceFile] = field(default_factory=list)
    guarded: list[SourceFile] = field(default_factory=list)
    configs: dict[Path, bytes] = field(default_factory=dict)

    @property
    def stays(self) -> bool:
        """Return whether its files stay as they are."""
        return self.is_skipped or bool(self.refusals)

    def is_idle(self, flow: Flow) -> bool:
        """Return whether it is nothing but steps of unknown optimizers, in functions that nothing calls."""
        idle = idle_functions(flow)
        return not self.steps and not self.sites and all(idle.hold(each.node, each.file) for each in self.refusals)


def find_parts(operations: Operations, flow: Flow) -> list[Part]:
    """Divide a program into parts that share optimizers, or files with operations on them.

    A file that does nothing but make optimizers for others, as a factory of several scripts, joins no parts.
    """
    sets: list[tuple[set[int], list[Step], list[Refusal], list[Site]]] = []
    items: list[tuple[set[int], Step | None, Refusal | None, Site | None]] = []
    sites, refusals = find_sites(operations.steps, frozenset(optimizers_of(operations.steps)), flow)
    training = {id(place.file) for place in (*operations.steps, *operations.backwards)}
    training |= {id(refusal.file) for refusal in operations.refusals}
    training |= {id(one.file) for site in sites for one in site.all}

    def made(optimizers: Values) -> set[int]:
        return {v.key for v in optimizers} | ({id(flow.file(v)) for v in optimizers} & training)

    for step in operations.steps:
        items.append(({id(step.file), *made(step.optimizers)}, step, None, None))
    for refusal in operations.refusals:
        items.append(({id(refusal.file)}, None, refusal, None))
    for refusal, optimizers in refusals:
        items.append(({id(refusal.file), *made(optimizers)}, None, refusal, None))
    for site in sites:
        items.append(({*(id(one.file) for one in site.all), *made(site.optimizers)}, None, None, site))
    steps = [step for step in operations.steps if not any(b.function is step.function for b in operations.backwards)]
    for backward in operations.backwards:
        beside = backward.file, backward.function  # in which step() of a wrapper is called
        called = {id(step.file) for step in steps if flow.callers.leading_to(step.function, *beside)}
        items.append(({id(backward.file), *called} if called else set(), None, None, None))
    for keys, a_step, a_refusal, a_site in items:
        merged = (set(keys), [a_step] if a_step else [], [a_refusal] if a_refusal else [], [a_site] if a_site else [])
        rest = []
        for known in sets:
            if known[0] & merged[0]:
                merged = (known[0] | merged[0], known[1] + merged[1], known[2] + merged[2], known[3] + merged[3])
            else:
                rest.append(known)
        sets = [*rest, merged]
    trained = {backward.file for backward in operations.backwards}
    refused = {refusal.file for refusal in operations.refusals if refusal.code is Code.PLAIN_BACKWARD}
    by_id = {id(file): file for file in flow.files.values()}
    return [
        Part(sorted((by_id[k] for k in keys & by_id.keys()), key=lambda f: str(f.path)), steps, problems, sites=own)
        for keys, steps, problems, own in sets
        if steps
        or any(r.file in trained or (r.file in refused and r.code is not Code.PLAIN_BACKWARD) for r in problems)
    ]


def used_first(parts: Sequence[Part], flow: Flow) -> list[Part]:
    """Return parts in an order in which those come first whose files others use: these find them converted."""
    used = [files_used(part.files, flow) for part in parts] if len(parts) > 1 else [set()]
    ordered, left = list[Part](), list(range(len(parts)))
    while left:
        waits = {i for i in left for j in left if i != j and used[i] & set(map(id, parts[j].files))}
        first = next((i for i in left if i not in waits), left[0])
        ordered.append(parts[first])
        left.remove(first)
    return ordered


def operations_of(part: Part, operations: Operations, callers: Callers) -> Operations:
    """Return the operations of a part; clips and backward passes of other parts stay out.

    Clips and backward passes of files that step nothing are of each part that calls them.
    """
    files = {id(file) for file in part.files}
    stepping = {id(step.file) for step in operations.steps}
    cleared = optimizers_of(part.steps) | {value for site in part.sites for value in site.of}

    def is_own(place: Place) -> bool:
        is_helper = id(place.file) not in stepping
        return id(place.file) in files or (is_helper and bool(files & callers.files_of(place.function)))

    return Operations(
        part.steps,
        [backward for backward in operations.backwards if is_own(backward)],
        [zero for zero in operations.zero_grads if id(zero.file) in files or zero.values & cleared],
        [clip for clip in operations.clips if is_own(clip)],
        [],
        operations.attacks,
        operations.attacked,
    )
