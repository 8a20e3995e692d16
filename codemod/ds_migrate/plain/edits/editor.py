"""The edits of a program that is converted."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import libcst as cst

from ds_migrate.findings import Severity
from ds_migrate.plain.dataflow.calls.idle_functions import is_called
from ds_migrate.plain.dataflow.lookup.files_beside import files_beside
from ds_migrate.plain.dataflow.torch_names import INIT
from ds_migrate.plain.decisions.plan import Note, ProgramPlan
from ds_migrate.plain.edits.engine_arguments import calls_left, pass_engines
from ds_migrate.plain.edits.engine_calls import write_calls
from ds_migrate.plain.edits.engine_creation import EngineWriter
from ds_migrate.plain.edits.freed_engines import free_engines
from ds_migrate.plain.edits.runtime_names import RuntimeNames, use_star_imports
from ds_migrate.plain.ranks.agreement.caught_errors import errors_of_one_rank, files_of_one_rank
from ds_migrate.plain.ranks.agreement.decisions import agree
from ds_migrate.plain.ranks.data.shares import share_data
from ds_migrate.plain.ranks.devices import RankDevices
from ds_migrate.plain.ranks.engine_device import follow_engines
from ds_migrate.plain.ranks.files.cached_files import share_looks
from ds_migrate.plain.ranks.files.file_readers import FileReaders
from ds_migrate.plain.ranks.files.numbered_folders import share_names_not_taken
from ds_migrate.plain.ranks.files.prepared_data import PreparedData
from ds_migrate.plain.ranks.files.taken_names import decide_where_folders_are
from ds_migrate.plain.ranks.files.waits import wait_for_saves
from ds_migrate.plain.ranks.idle_code import is_idle
from ds_migrate.plain.ranks.launch.launcher_argument import LauncherArgument
from ds_migrate.plain.ranks.launch.other_starts import ranks_of_mpi
from ds_migrate.plain.ranks.launch.start import start_ranks
from ds_migrate.plain.ranks.processes.environments import separate_environments
from ds_migrate.plain.ranks.processes.time_stamps import share_temporary_folders, share_time_stamps
from ds_migrate.plain.ranks.processes.unshared_generators import unshared_generators
from ds_migrate.plain.ranks.rank_zero.commands import commands_of_all_ranks
from ds_migrate.plain.ranks.rank_zero.guarded_writes import wait_for_written
from ds_migrate.plain.ranks.rank_zero.library_writers import LibraryWriters
from ds_migrate.plain.ranks.rank_zero.loggers import quiet_loggers
from ds_migrate.plain.ranks.rank_zero.made_folders import make_folders_once
from ds_migrate.plain.ranks.rank_zero.output_guards import OutputGuards
from ds_migrate.plain.ranks.rank_zero.written_files import write_once
from ds_migrate.plain.ranks.unwrapping.unwrap import unwrap
from ds_migrate.plain.recognition.libraries.frameworks import framework_script
from ds_migrate.plain.recognition.lone_scripts import may_run_alone, runs_alone
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.source import SourceFile

Report = Callable[[Severity, Note], None]


class Editor:
    """Claims the edits of one part of a program, once everything about it is decided.

    Args:
        files: those of the part.
        others: those of other parts, which are edited for them, or stay as they are.
        kept: those whose output stays as it is.
        changeable: all that may change.
        fixed: those that other loops use as they are: what can be left to a person there, for review, is.
        report: gets a note for each edit.
    """

    def __init__(
        self,
        plan: ProgramPlan,
        files: Sequence[SourceFile],
        others: Collection[SourceFile],
        kept: Collection[SourceFile],
        changeable: Collection[SourceFile],
        fixed: Collection[SourceFile],
        runtime: RuntimeNames,
        report: Report,
    ) -> None:
        self.plan = plan
        self.files = list(files)
        self._others = others
        self._kept = kept
        self._changeable = changeable
        self._fixed = fixed
        self.flow = plan.facts.flow
        self._report = report
        self._runtime = runtime
        self._left: list[Note] | None = None  # what is left to a person
        self.guarded: list[SourceFile] = []  # those in which nothing but output changes, with no wait for it

    def apply(self) -> None:
        use_star_imports(self.flow)
        EngineWriter(self.plan, self._runtime, self._converted).write()
        follow_engines(self.plan, self._converted, self._review)
        write_calls(self.plan, self._runtime, self._converted)
        pass_engines(self.plan, self._converted)
        free_engines(self.plan, self._converted)
        beside = files_beside(self.files, self.flow)
        unwrap(self.plan.facts, beside, self._runtime, self._converted, self._review)
        share_data(self.plan, beside, self._runtime, self._converted, self._review)
        staying = [file for file in self._fixed if file in self._others]
        decided = agree(self.plan, beside, staying, self._runtime, self._converted, self._review)
        notes = [*self.plan.notes, *calls_left(self.plan)]
        facts = self.plan.facts
        drawing = [file for file in beside if may_run_alone(file, facts)]  # else ranks may draw others on purpose
        notes += unshared_generators(drawing, self.flow)
        notes += separate_environments(drawing, self.flow)
        shared = [file for file in self._fixed if file not in staying]
        notes += start_ranks(facts, self.files, beside, shared, self._runtime, self._converted)
        touched = [f for f in self.flow.files.values() if f.edits and f not in self.files and f not in self._others]
        self.files = [*self.files, *touched]
        stepping = {step.file for step in self.plan.facts.operations.steps}
        others = [f for f in beside if f not in stepping and f not in self._others]
        helpers = [f for f in others if framework_script(f.path, f.data) is None]
        program = [*self.files, *(f for f in helpers if f not in self.files)]
        # What several ranks run already, as the program starts them itself, makes the output that it is meant to.
        own = [file for file in self.files if may_run_alone(file, facts)]
        beside_it = [f for f in helpers if f not in self.files and may_run_alone(f, facts)]
        quiet = [f for f in beside_it if f not in self._kept]
        guards = OutputGuards(self.plan, self._runtime, self._converted)
        guards.guard_saves(f for f in beside_it if f not in quiet)
        with self._left_to_a_person():
            notes += RankDevices(facts, is_called(INIT, self.flow), self._converted).free(program)
        argument = LauncherArgument(self.plan.facts, self._changeable, self._runtime, self._converted)
        notes += [*argument.add(self.files, helpers), *ranks_of_mpi(program, self.flow)]
        prepared = PreparedData(self.plan, [*own, *quiet], self._runtime)
        notes += prepared.let_rank_0_begin(self._converted)
        with self._left_to_a_person():
            make_folders_once(facts, own, beside_it, self._runtime, self._converted)
        self.guarded = [f for f in quiet if not f.edits]
        guards.guard_output(own, quiet)
        notes += quiet_loggers(facts, [*own, *quiet], self._runtime, self._converted)
        others = [f for f in beside_it if f not in quiet]
        notes += guards.left_as_it_is(others)
        readers = FileReaders(self.plan.facts, program, self._runtime, self._converted)
        read_again = write_once(facts, [*own, *quiet], others, readers, self._runtime, self._converted)
        known = {f: f.edits.claims.lengths for f in self.guarded}
        with self._left_to_a_person():
            notes += wait_for_written(guards.written(), readers, facts)
        alone = [file for file in (*own, *beside_it) if runs_alone(file, self.flow)]
        if alone:
            own = [file for file in (*own, *quiet) if file in alone]
            program = alone
            read_again = [note for note in read_again if note.file in alone]
            with self._left_to_a_person():
                notes += [
                    *commands_of_all_ranks(program, self.flow),
                    *errors_of_one_rank(facts),
                    *files_of_one_rank(facts),
                ]
                notes += LibraryWriters(self.plan).notes(program)
                notes += share_names_not_taken(facts, program, own, self._runtime, self._converted)
                notes += read_again
                if facts.options.runtime:
                    notes += decide_where_folders_are(facts, own, self._runtime, self._converted)
                    written = list(guards.written())
                    notes += share_looks(facts, program, own, written, decided, readers, self._runtime, self._converted)
                    for share in (share_time_stamps, share_temporary_folders):
                        notes += share(program, self.flow, self._runtime, self._converted)
                notes += wait_for_saves(self.plan, program, decided, readers, self._runtime, self._converted)
        self.guarded = [
            f for f in self.guarded if f.edits and f.edits.claims.lengths == known[f] and not readers.waits_in(f)
        ]
        for note in notes:
            if note.help is not None:
                self._review(note)
            else:
                self._report(Severity.CONVERTED, note)

    @property
    def missing(self) -> list[str]:
        """The helpers that the conversion needs, although the runtime may not be used."""
        return self._runtime.missing

    @contextmanager
    def _left_to_a_person(self) -> Iterator[None]:
        """Take back what changes in files that other loops use as they are; it is for review."""
        undo = [file.checkpoint() for file in self._fixed]
        self._left = []
        yield
        for undo_one in undo:
            undo_one()
        for note in self._left:
            message = f"unchanged, as other loops use it, although several ranks need a change: {note.message}"
            self._review(
                replace(note, message=message, help="make this change here, or copy the file for this program")
            )
        self._left = None

    def _converted(self, code_: Code, file: SourceFile, node: cst.CSTNode, message: str) -> None:
        note = Note(code_, file, node, message)
        if self._left is not None and file in self._fixed:
            self._left.append(note)
        else:
            self._report(Severity.CONVERTED, note)

    def _review(self, note: Note) -> None:
        if is_idle(note.node, note.file, self.plan.facts):
            return
        self._report(Severity.REVIEW, note)
