"""The conversion of the plain training loops of a project, program by program: all of it or none."""

from __future__ import annotations

import traceback
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import libcst as cst

from ds_migrate.conversion.output_check import check
from ds_migrate.files.prefilter import may_pass_backward
from ds_migrate.findings import FileResult, FileStatus, Finding, Severity, TrialResult, TrialStatus
from ds_migrate.options import Options
from ds_migrate.plain.dataflow.calls import Callers
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.decisions.decide import decide
from ds_migrate.plain.decisions.plan import Note
from ds_migrate.plain.edits.editor import Editor
from ds_migrate.plain.parts import Part, find_parts, operations_of, used_first
from ds_migrate.plain.program import MOST_FILES, MOST_READ, Program
from ds_migrate.plain.recognition.apex_branches import RAISED, ChangedFile, WithoutApex, line_numbers, without_apex
from ds_migrate.plain.recognition.facts import LoopFacts, Operations, Refusal, Step
from ds_migrate.plain.recognition.library_scalers import OWN_SCALER, with_own_scaler
from ds_migrate.plain.recognition.operations import find_operations
from ds_migrate.plain.recognition.refusals import find_refusals
from ds_migrate.plain.results import loop_name, part_results, written_configs
from ds_migrate.project.control_comments import Comments
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.import_order import sort_like
from ds_migrate.syntax.line_folding import fold_new
from ds_migrate.syntax.nodes import code
from ds_migrate.syntax.source import SourceError, SourceFile

_COPY = "copy the files of this program to a separate folder"


@dataclass(frozen=True)
class LoopUnit:
    """A program to convert: a value that any process can work on.

    ``single_loop_folders``: those in which one file at most has a training loop, so that its config needs no name.
    """

    program: Program
    sources: Mapping[Path, bytes]
    writable: frozenset[Path]
    comments: Mapping[Path, Comments]
    options: Options
    single_loop_folders: frozenset[Path] = frozenset()


def convert_program(unit: LoopUnit) -> tuple[list[FileResult], set[tuple[Path, int]]]:
    """Convert the loops of a program, and return the comments that skip one too.

    Files whose optimizers have nothing in common are converted by themselves.
    """
    own, along = len(unit.program.files), len(unit.program.context)
    if own > MOST_FILES or own + along > MOST_READ:
        count, limit = (own, MOST_FILES) if own > MOST_FILES else (own + along, MOST_READ)
        return _too_large(unit, count, limit), set()
    conversion = _Conversion(unit)
    try:
        return list(conversion.results()), conversion.skips
    except Exception as error:
        trace = traceback.extract_tb(error.__traceback__)
        where = f" ({Path(trace[-1].filename).name}:{trace[-1].lineno})" if trace else ""
        message = f"ds-migrate failed: {type(error).__name__}: {' '.join(str(error).split())[:300]}{where}"
        finding = Finding(Code.FAILED_CHECK, Severity.ERROR, 1, message, help="please report this file")
        return [FileResult(unit.program.files[0], status=FileStatus.ERROR, findings=[finding])], set()
    finally:
        conversion.close()


def _too_large(unit: LoopUnit, count: int, limit: int) -> list[FileResult]:
    """Return that a program is not looked into."""
    message = f"{count} files import each other around this loop, the limit is {limit}"
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


class _Conversion:
    def __init__(self, unit: LoopUnit) -> None:
        self.unit = unit
        self.files: dict[Path, SourceFile] = {}
        self.errors: list[FileResult] = []
        self.skips: set[tuple[Path, int]] = set()
        self.done: list[SourceFile] = []
        self.left: list[SourceFile] = []  # that loops which stay as they are would have changed beside their own
        self.simplified = _changed_before(unit)
        for path in (*unit.program.files, *unit.program.context):
            data = unit.sources.get(path)
            if data is None:
                continue
            found = self.simplified.get(path)
            try:
                self.files[path] = (
                    SourceFile(path, data, self._comments(path).accepted)
                    if found is None
                    else SourceFile(path, found.data, self._comments(path).accepted, reported_lines=found.lines)
                )
            except SourceError as error:
                if path in unit.program.files:
                    self.errors.append(FileResult(path, status=FileStatus.ERROR, findings=[error.finding]))

    def _comments(self, path: Path) -> Comments:
        return self.unit.comments.get(path, Comments())

    def close(self) -> None:
        for file in self.files.values():
            file.close()

    def results(self) -> Iterator[FileResult]:
        yield from self.errors
        flow = Flow(self.files, self.unit.program.resolve)
        callers = Callers(flow)
        operations = find_operations(flow, callers)
        for part in used_first(find_parts(operations, flow, callers), flow):
            yield from self._convert(part, operations, flow, callers)

    def _convert(self, part: Part, everything: Operations, flow: Flow, callers: Callers) -> Iterator[FileResult]:
        if self._is_skipped(part):
            yield from part_results(part, {}, TrialStatus.SKIPPED)
            return
        operations = operations_of(part, everything, callers)
        part.refusals += [
            *operations.refusals,
            *(_left_as_it_is(part.steps[0], file) for file in self.left if part.steps),
        ]
        named = list(find_refusals(part.files, operations, flow, callers))
        if any(refusal.code is Code.PLAIN_FRAMEWORK for refusal in named):
            part.refusals = []  # what cannot be followed is in the framework
        part.refusals += named
        plan = None
        if not part.refusals:
            folders = self.unit.single_loop_folders
            plan = decide(LoopFacts(operations, part.sites, flow, callers, self.unit.options, folders))
            part.refusals += plan.refusals
        outputs: dict[Path, bytes] = {}
        if plan is not None and not plan.refusals:
            editor = Editor(plan, part.files, self.done, lambda severity, note: part.notes.append((severity, note)))
            editor.apply()
            own = list(part.files)
            part.refusals += _missing(editor, part.steps[0])
            part.files += [f for f in self.files.values() if f.edits and f not in part.files and f not in self.done]
            self._add_changed(part)
            self._check_writable(part)
            outputs, problems = _rendered(part.files, self.simplified)
            part.refusals += problems
            part.configs, problems = written_configs(plan.engines)
            part.refusals += problems
            if part.refusals:
                self.left += [file for file in part.files if file.edits and file not in own]
        self.done += part.files
        yield from part_results(part, outputs, TrialStatus.BLOCKED if part.refusals else TrialStatus.CONVERTED)

    def _add_changed(self, part: Part) -> None:
        """Add the files that were changed before: without apex.amp, or with a class in the place of a library's."""
        part.files += [
            self.files[path] for path in self.simplified if self.files[path] not in (*part.files, *self.done)
        ]
        for file in part.files:
            for node in file.nodes(cst.Raise) if file.path in self.simplified else ():
                if code(node) == RAISED:
                    message = "apex.amp and an engine would both own the precision: this branch ends with an error now"
                    advice = "use torch.autocast and torch.amp.GradScaler here, and convert the script again"
                    part.notes.append((Severity.REVIEW, Note(Code.PLAIN_PRECISION, file, node, message, advice)))
            for node in file.nodes(cst.ClassDef) if file.path in self.simplified else ():
                if OWN_SCALER in code(node):
                    message = (
                        f"{node.name.value} of timm is a class of the program: the engine goes back and steps in it"
                    )
                    part.notes.append((Severity.CONVERTED, Note(Code.PLAIN_PRECISION, file, node, message)))

    def _check_writable(self, part: Part) -> None:
        """Refuse a part that changes files which are not to be written, or belong to what stays as it is."""
        shared = set(self.unit.program.context) if self.unit.program.is_divided else set()
        for file in part.files:
            is_written = bool(file.edits) or file.path in self.simplified
            if is_written and (file.path not in self.unit.writable or file in self.done):
                required = _shared_with_others if file.path in shared else _not_given
                if file in self.done and file.path in self.unit.writable:
                    required = _changed_by_another
                part.refusals.append(required(part.steps[0], file))

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


def _left_as_it_is(step: Step, file: SourceFile) -> Refusal:
    message = f"{loop_name(step)} also requires {file.path.name}, which another loop leaves as it is"
    return Refusal(Code.FILE_NOT_NAMED, step.file, step.node, message, _COPY)


def _shared_with_others(step: Step, file: SourceFile) -> Refusal:
    message = f"{loop_name(step)} also requires {file.path.name}, which other programs use too"
    return Refusal(Code.FILE_NOT_NAMED, step.file, step.node, message, _COPY)


def _changed_by_another(step: Step, file: SourceFile) -> Refusal:
    message = f"{loop_name(step)} also requires {file.path.name}, which another loop changes too"
    return Refusal(Code.FILE_NOT_NAMED, step.file, step.node, message, _COPY)


def _not_given(step: Step, file: SourceFile) -> Refusal:
    message = f"{loop_name(step)} also requires {file.path.name}, which is not among the given paths"
    return Refusal(Code.FILE_NOT_NAMED, step.file, step.node, message, f"name {file.path.name} too")


def _lines_of(step: Step) -> Iterator[int]:
    yield step.file.reported_position(step.node)[0]
    if step.function is not None:
        yield step.file.reported_position(step.function)[0]


def _rendered(files: Iterable[SourceFile], simplified: Collection[Path]) -> tuple[dict[Path, bytes], list[Refusal]]:
    outputs: dict[Path, bytes] = {}
    problems: list[Refusal] = []
    for file in files:
        if not file.edits and file.path not in simplified:
            continue
        after = fold_new(file.data, sort_like(file.data, file.render()), file.module.default_indent, file.width)
        problem = check(file.data, after)
        if problem is not None:
            problems.append(Refusal(problem.code, file, file.module, problem.message, "please report this file"))
        outputs[file.path] = after
    return outputs, problems


def _missing(editor: Editor, step: Step) -> list[Refusal]:
    """Return why a conversion without the runtime is none: it needs helpers of the runtime."""
    return [
        Refusal(
            Code.PLAIN_ENGINE, step.file, step.node, f"{name}() of trial_runtime.plain is needed here",
            "leave out --no-runtime",
        )
        for name in editor.missing
    ]  # fmt: skip
