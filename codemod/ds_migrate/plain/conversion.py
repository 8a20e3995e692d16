"""The conversion of the plain training loops of a project, program by program: all of it or none."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ds_migrate.files.prefilter import may_pass_backward
from ds_migrate.findings import FileResult, FileStatus, Finding, Severity, TrialResult, TrialStatus
from ds_migrate.options import Options
from ds_migrate.plain.dataflow.calls.callers import Callers
from ds_migrate.plain.dataflow.flow import Flow, Given
from ds_migrate.plain.dataflow.lookup.files_beside import files_used
from ds_migrate.plain.parts.editing import PartEditing
from ds_migrate.plain.parts.part import Part, find_parts, operations_of, used_first
from ds_migrate.plain.parts.related_parts import merge_sharing
from ds_migrate.plain.parts.results import part_results
from ds_migrate.plain.programs.parsed_files import ParsedFiles
from ds_migrate.plain.programs.program import LARGEST_PROGRAM, Program
from ds_migrate.plain.programs.program_results import ProgramResults
from ds_migrate.plain.recognition.facts import Operations, Step, optimizers_of
from ds_migrate.plain.recognition.libraries.apex_branches import ChangedFile, WithoutApex, line_numbers, without_apex
from ds_migrate.plain.recognition.libraries.library_scalers import with_own_scaler
from ds_migrate.plain.recognition.refusals import find_refusals
from ds_migrate.plain.recognition.steps.operations import find_operations
from ds_migrate.project.control_comments import Comments
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.source import SourceError, SourceFile


@dataclass(frozen=True)
class LoopUnit:
    """A program to convert: a value that any process can work on.

    ``single_loop_folders``: those in which one file at most has a training loop, so that its config needs no name.
    ``earlier``: helper files as other programs that use them too have changed them.
    """

    program: Program
    sources: Mapping[Path, bytes]
    writable: frozenset[Path]
    comments: Mapping[Path, Comments]
    options: Options
    single_loop_folders: frozenset[Path] = frozenset()
    earlier: Mapping[Path, bytes] = field(default_factory=dict)


def convert_program(unit: LoopUnit, parsed: ParsedFiles) -> ProgramResults:
    """Convert the loops of a program. Files whose optimizers have nothing in common are converted by themselves."""
    size = sum(map(len, unit.sources.values()))
    if size > LARGEST_PROGRAM:
        return ProgramResults(_too_large(unit, size), left=set(unit.program.files))
    try:
        conversion = _Conversion(unit, parsed)
        results = list(conversion.results())
        return ProgramResults(results, conversion.skips, conversion.guarded, conversion.left)
    except Exception as error:
        trace = traceback.extract_tb(error.__traceback__)
        where = f" ({Path(trace[-1].filename).name}:{trace[-1].lineno})" if trace else ""
        message = f"ds-migrate failed: {type(error).__name__}: {' '.join(str(error).split())[:300]}{where}"
        finding = Finding(Code.FAILED_CHECK, Severity.ERROR, 1, message, help="please report this file")
        failed = FileResult(unit.program.files[0], status=FileStatus.ERROR, findings=[finding])
        return ProgramResults([failed], left=set(unit.program.files))
    finally:
        parsed.finish(unit.program)


def _too_large(unit: LoopUnit, size: int) -> list[FileResult]:
    """Return that a program is not looked into."""
    message = (
        f"the {len(unit.sources)} files around this loop that import each other have {size // 1000:,} kB, "
        f"the limit is {LARGEST_PROGRAM // 1000:,} kB"
    )
    advice = "name the files of one program, in a folder that holds no other"
    results = []
    for path in unit.program.files:
        if may_pass_backward(unit.sources.get(path, b"")):
            finding = Finding(Code.PLAIN_UNTRACED, Severity.BLOCKED, 1, message, help=advice)
            trial = TrialResult(f"the loop of {path.stem}", 1, TrialStatus.BLOCKED, is_loop=True)
            results.append(FileResult(path, status=FileStatus.BLOCKED, trials=[trial], findings=[finding]))
    return results


def _without_apex(unit: LoopUnit) -> dict[Path, WithoutApex]:
    """Return the files without their branches for apex.amp, where these cannot run any more."""
    found = {path: without_apex(data) for path in unit.program.files if (data := unit.sources.get(path)) is not None}
    known = {path: file for path, file in found.items() if file is not None}
    return known if any(file.raises for file in known.values()) else {}


def _changed_before(unit: LoopUnit) -> dict[Path, ChangedFile]:
    """Return the files that are changed before their loops are looked at."""
    found: dict[Path, ChangedFile] = {**_without_apex(unit)}
    for path in unit.program.files:
        original = unit.sources.get(path, b"")
        own = with_own_scaler(found[path].data if path in found else original)
        if own is not None:
            found[path] = ChangedFile(own, line_numbers(original, own))
    return found


def _changed_earlier(unit: LoopUnit, path: Path) -> ChangedFile:
    """Return a file as it is, or as another program has changed it."""
    data, changed = unit.sources[path], unit.earlier.get(path)
    return ChangedFile(data, ()) if changed is None else ChangedFile(changed, line_numbers(data, changed))


class _Conversion:
    def __init__(self, unit: LoopUnit, parsed: ParsedFiles) -> None:
        self.unit = unit
        self.files: dict[Path, SourceFile] = {}
        self.errors: list[FileResult] = []
        self.skips: set[tuple[Path, int]] = set()
        self.guarded: set[Path] = set()
        self.left: set[Path] = set()
        self.simplified = _changed_before(unit)
        for path in unit.program.paths:
            if path not in unit.sources:
                continue
            found = self.simplified.get(path) or _changed_earlier(unit, path)
            try:
                self.files[path] = parsed.open(path, found.data, found.lines)
            except SourceError as error:
                if path in unit.program.files:
                    self.errors.append(FileResult(path, status=FileStatus.ERROR, findings=[error.finding]))

    def _comments(self, path: Path) -> Comments:
        return self.unit.comments.get(path, Comments())

    def results(self) -> Iterator[FileResult]:
        yield from self.errors
        flow, callers, operations, found = self._analyse()
        parts = used_first(merge_sharing(found, operations, flow), flow)
        for part in parts:
            part.is_skipped = self._is_skipped(part)
            part.operations = operations_of(part, operations, callers)
            part.refusals += part.operations.refusals
            makers = (flow.file(value) for value in flow.in_order(frozenset(optimizers_of(part.steps))))
            files = list(dict.fromkeys((*part.files, *makers)))
            named = list(find_refusals(files, part.operations, flow))
            if any(refusal.code is Code.PLAIN_FRAMEWORK for refusal in named):
                part.refusals = []  # what cannot be followed is in the framework
            part.refusals += named
        unit = self.unit
        shared = set(unit.program.context) if unit.program.is_divided else set()
        editing = PartEditing(
            flow, unit.options, unit.single_loop_folders, [*self.simplified, *unit.earlier], unit.writable, shared
        )
        outputs = editing.edit(parts)
        for part in parts:
            self.guarded |= {file.path for file in part.guarded}
            if part.stays:
                used = files_used(part.files, flow)
                self.left |= {file.path for file in self.files.values() if id(file) in used}
            yield from part_results(part, outputs)

    def _analyse(self) -> tuple[Flow, Callers, Operations, list[Part]]:
        """Find the loops of the program, also those of functions that get their model from outside of it."""
        given: dict[int, Given] = {}
        while True:
            flow = Flow(self.files, self.unit.program.resolve, given.values(), self.unit.program.commands)
            callers = flow.callers
            operations = find_operations(flow)
            parts = find_parts(operations, flow)
            alone = (part.refusals for part in parts if all(refusal.given for refusal in part.refusals))
            new = {id(one.parameter): one for refusals in alone for refusal in refusals for one in refusal.given}
            if new.keys() <= given.keys():
                return flow, callers, operations, parts
            given |= new

    def _is_skipped(self, part: Part) -> bool:
        """Return whether a comment on a step, or on the function around it, leaves these files as they are."""
        lines = {(s.file.path, line) for s in part.steps for line in _lines_of(s)}
        used = {
            (file.path, comment.line)
            for file in part.files
            for comment in self._comments(file.path).skips
            if {(file.path, comment.line), (file.path, comment.target)} & lines
        }
        self.skips |= used
        return bool(used)


def _lines_of(step: Step) -> Iterator[int]:
    yield step.file.reported_position(step.node)[0]
    if step.function is not None:
        yield step.file.reported_position(step.function)[0]
