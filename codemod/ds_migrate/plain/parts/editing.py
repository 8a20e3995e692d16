"""The edits of the parts of a program: claimed one after the other, and taken back where a part is refused."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

import libcst as cst

from ds_migrate.conversion.output_check import check
from ds_migrate.findings import Severity
from ds_migrate.options import Options
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.lookup.files_beside import files_used
from ds_migrate.plain.decisions.decide import decide
from ds_migrate.plain.decisions.plan import Note
from ds_migrate.plain.edits.editor import Editor
from ds_migrate.plain.edits.runtime_names import RuntimeNames
from ds_migrate.plain.parts.part import Part
from ds_migrate.plain.parts.related_parts import review_loops_beside
from ds_migrate.plain.parts.results import loop_name, written_configs
from ds_migrate.plain.parts.undecided_calls import review_undecided
from ds_migrate.plain.recognition.facts import LoopFacts, Refusal, Step
from ds_migrate.plain.recognition.libraries.apex_branches import RAISED
from ds_migrate.plain.recognition.libraries.library_scalers import OWN_SCALER
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.claims import Lengths
from ds_migrate.syntax.import_order import sort_like
from ds_migrate.syntax.line_folding import fold_new
from ds_migrate.syntax.nodes import code
from ds_migrate.syntax.parsing import parse_if_valid
from ds_migrate.syntax.source import SourceFile

_COPY = "copy the files of this program to a separate folder"


class PartEditing:
    """The editing of a program's files for all its parts that can be converted.

    Args:
        single_loop_folders: those with one loop, whose config needs no name.
        simplified: the files that were changed before their loops were looked at.
        writable: the files that may be written.
        shared: those that other programs use too.
    """

    def __init__(
        self,
        flow: Flow,
        options: Options,
        single_loop_folders: Collection[Path],
        simplified: Collection[Path],
        writable: Collection[Path],
        shared: Collection[Path],
    ) -> None:
        self._flow = flow
        self._options = options
        self._single_loop_folders = single_loop_folders
        self._simplified = simplified
        self._unparsed = {path for path, file in flow.files.items() if parse_if_valid(file.data) is None}
        self._writable = set(writable) - self._unparsed
        self._shared = shared
        self._runtime = RuntimeNames(options.runtime)

    def edit(self, parts: Sequence[Part]) -> Mapping[Path, bytes]:
        """Return the files that change, with their new text; parts that cannot be converted get their refusals.

        A part that needs a file of a refused one is refused as well, so that one that was edited before that was known
        is taken back with all others, and these are edited again.
        """
        while True:
            undo = self._checkpoint()
            outputs = self._edit_all(parts)
            if outputs is not None:
                self._share(parts, outputs)
                review_loops_beside(parts, self._flow)
                review_undecided(parts, self._flow)
                for part in parts:
                    part.refusals += _of_other_files(part) if part.refusals else ()
                return outputs
            undo()

    def _share(self, parts: Sequence[Part], outputs: Collection[Path]) -> None:
        """Let parts be written together that use what another one has changed."""
        for part in parts:
            used = files_used(part.files, self._flow) if part.changed else ()
            for path in outputs:
                file = self._flow.files[path]
                if id(file) in used and file not in part.changed:
                    part.changed.append(file)

    def _edit_all(self, parts: Sequence[Part]) -> Mapping[Path, bytes] | None:
        """Edit the files of all parts without a refusal; None where one has changed the files of one that is."""
        outputs: dict[Path, bytes] = {}
        edited: list[Part] = []
        for part in parts:
            part.changed, part.guarded, part.notes, part.configs = [], [], [], {}
        for part in parts:
            if part.stays:
                continue
            undo = self._checkpoint()
            found = self._edit(part, parts, outputs)
            if part.refusals:
                undo()
                part.changed, part.guarded = [], []
                used = files_used(part.files, self._flow)
                if any(
                    set(part.files) & set(other.changed) or any(id(file) in used for file in other.guarded)
                    for other in edited
                ):
                    return None
                continue
            outputs |= found
            edited.append(part)
        return outputs

    def _edit(self, part: Part, parts: Sequence[Part], outputs: Collection[Path]) -> Mapping[Path, bytes]:
        """Return the files that a part changes, with their new text. Its refusals are why it stays as it is."""
        assert part.operations is not None
        plan = decide(LoopFacts(part.operations, part.sites, self._flow, self._options, self._single_loop_folders))
        part.refusals += plan.refusals
        if part.refusals:
            return {}
        files = self._flow.files.values()
        others = {file for other in parts if other is not part for file in (*other.files, *other.changed)}
        before = {file: file.edits.claims.lengths for file in files}
        left = {key for other in parts if other.stays for key in files_used(other.files, self._flow)}
        kept = [f for f in files if f.path not in self._writable or f.path in self._shared or id(f) in left]
        staying = {file for other in parts if other.stays and other is not part for file in other.files}
        changeable = [f for f in files if f.path in self._writable and f not in staying]
        fixed = [f for f in files if f.path in self._shared or f in staying]

        def report(severity: Severity, note: Note) -> None:
            part.notes.append((severity, note))

        editor = Editor(plan, part.files, others, kept, changeable, fixed, self._runtime, report)
        editor.apply()
        part.guarded = editor.guarded
        step = part.steps[0]
        part.refusals += (
            Refusal(
                Code.PLAIN_ENGINE, step.file, step.node, f"{name}() of trial_runtime.plain is needed here",
                "leave out --no-runtime",
            )
            for name in editor.missing
        )  # fmt: skip
        for file in files:
            file.edits.claims.drop_repeated(before[file])
        known = {_key(note) for other in parts if not (other is part or other.stays) for note in other.notes}
        part.notes = [note for note in part.notes if _key(note) not in known]
        part.changed = [file for file in files if file.edits.claims.lengths != before[file]]
        self._add_simplified(part, outputs)
        for file in part.changed:
            if file.path in self._unparsed:
                required = _not_parsed
            elif file.path not in self._writable:
                required = _shared_with_others if file.path in self._shared else _not_given
            elif file in staying:
                required = _left_as_it_is
            elif _is_changed_twice(file, before[file]):
                required = _changed_by_another
            else:
                continue
            part.refusals.append(required(step, file))
        found, problems = self._rendered(part.changed)
        part.refusals += problems
        part.configs, problems = written_configs(plan.engines)
        part.refusals += problems
        return found

    def _checkpoint(self) -> Callable[[], None]:
        undo = [file.checkpoint() for file in self._flow.files.values()] + [self._runtime.checkpoint()]

        def undo_all() -> None:
            for one in undo:
                one()

        return undo_all

    def _add_simplified(self, part: Part, outputs: Collection[Path]) -> None:
        """Add the files that were changed before: without apex.amp, or with a class in the place of a library's."""
        files = [self._flow.files[path] for path in self._simplified if path not in outputs]
        part.changed += [file for file in files if file not in part.changed]
        for file in files:
            for node in file.nodes(cst.Raise):
                if code(node) == RAISED:
                    message = "apex.amp and an engine would both own the precision: this branch ends with an error now"
                    advice = "use torch.autocast and torch.amp.GradScaler here, and convert the script again"
                    part.notes.append((Severity.REVIEW, Note(Code.PLAIN_PRECISION, file, node, message, advice)))
            for node in file.nodes(cst.ClassDef):
                if OWN_SCALER in code(node):
                    message = f"{node.name.value} of timm is a class of the program now, which calls the engine"
                    part.notes.append((Severity.CONVERTED, Note(Code.PLAIN_PRECISION, file, node, message)))

    def _rendered(self, files: Iterable[SourceFile]) -> tuple[dict[Path, bytes], list[Refusal]]:
        outputs: dict[Path, bytes] = {}
        problems: list[Refusal] = []
        for file in files:
            undo = file.checkpoint()
            self._runtime.write_import(file)
            after = fold_new(file.data, sort_like(file.data, file.render()), file.module.default_indent, file.width)
            undo()
            problem = check(file.data, after)
            if problem is not None:
                problems.append(Refusal(problem.code, file, file.module, problem.message, "please report this file"))
            outputs[file.path] = after
        return outputs, problems


def _key(reported: tuple[Severity, Note]) -> tuple[Severity, Code, cst.CSTNode, str]:
    """Return what makes two notes the same."""
    severity, note = reported
    return severity, note.code, note.node, note.message


def _is_changed_twice(file: SourceFile, known: Lengths) -> bool:
    """Return whether what changes since then is what had changed before, a part of it, or around it."""
    old, new = file.edits.claims.changed(known)
    return any(
        around in others
        for nodes, others in ((new, old), (old, new))
        for node in nodes
        for around in (node, *file.ancestors(node))
    )


def _of_other_files(part: Part) -> list[Refusal]:
    """Return why loops stay for which nothing but another file has a reason: they share an optimizer or a model."""
    first, refused = part.refusals[0], {refusal.file for refusal in part.refusals}
    name, line = first.file.path.name, first.file.reported_position(first.node)[0]
    steps = {step.file: step for step in reversed(part.steps) if step.file not in refused}
    return [
        Refusal(
            Code.FILE_NOT_NAMED, step.file, step.node,
            f"{loop_name(step)} stays as it is for a reason in {name}, line {line}", f"resolve what is found in {name}",
        )
        for step in steps.values()
    ]  # fmt: skip


def _left_as_it_is(step: Step, file: SourceFile) -> Refusal:
    message = f"{loop_name(step)} also requires {file.path.name}, where another loop stays as it is"
    return Refusal(Code.FILE_NOT_NAMED, step.file, step.node, message, f"move the other loop out of {file.path.name}")


def _shared_with_others(step: Step, file: SourceFile) -> Refusal:
    message = f"{loop_name(step)} also requires {file.path.name}, which other programs use too"
    return Refusal(Code.FILE_NOT_NAMED, step.file, step.node, message, _COPY)


def _changed_by_another(step: Step, file: SourceFile) -> Refusal:
    message = f"{loop_name(step)} also requires {file.path.name}, of which another loop changes the same lines"
    return Refusal(Code.FILE_NOT_NAMED, step.file, step.node, message, _COPY)


def _not_given(step: Step, file: SourceFile) -> Refusal:
    message = f"{loop_name(step)} also requires {file.path.name}, which is not among the given paths"
    return Refusal(Code.FILE_NOT_NAMED, step.file, step.node, message, f"name {file.path.name} too")


def _not_parsed(step: Step, file: SourceFile) -> Refusal:
    message = f"{loop_name(step)} also requires {file.path.name}, which the Python that runs ds-migrate cannot parse"
    return Refusal(Code.FILE_NOT_NAMED, step.file, step.node, message, "run ds-migrate with the Python of the program")
