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
from ds_migrate.plain.ranks.processes.time_stamps import share_temporary_folders, share_time_stamps
from ds_migrate.plain.ranks.processes.unshared_generators import separate_environments, unshared_generators
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
        self._facts = plan.facts
        self.flow = plan.facts.flow
        self._staying = [file for file in fixed if file in others]
        self._notes: list[Note] = []
        self._report = report
        self._runtime = runtime
        self._left: list[Note] | None = None  # what is left to a person
        self.guarded: list[SourceFile] = []  # those in which nothing but output changes, with no wait for it

    def apply(self) -> None:
        """Write engines, what several ranks need beside them, and a note for each edit."""
        self._write_engines()
        beside = files_beside(self.files, self.flow)
        decided = self._share_work(beside)
        self._start_ranks(beside)
        helpers = self._helpers(beside)
        program = [*self.files, *(f for f in helpers if f not in self.files)]
        # What several ranks run already, as the program starts them itself, makes the output that it is meant to.
        own = [file for file in self.files if may_run_alone(file, self._facts)]
        beside_it = [f for f in helpers if f not in self.files and may_run_alone(f, self._facts)]
        quiet = [f for f in beside_it if f not in self._kept]
        guards = OutputGuards(self.plan, self._runtime, self._converted)
        guards.guard_saves(f for f in beside_it if f not in quiet)
        self._place_ranks(program, helpers)
        self._make_data(own, beside_it, quiet)
        self.guarded = [f for f in quiet if not f.edits]
        self._quieten(guards, own, beside_it, quiet)
        readers = FileReaders(self._facts, program, self._runtime, self._converted)
        others = [f for f in beside_it if f not in quiet]
        read_again = write_once(self._facts, [*own, *quiet], others, readers, self._runtime, self._converted)
        known = {f: f.edits.claims.lengths for f in self.guarded}
        with self._left_to_a_person():
            self._notes += wait_for_written(guards.written(), readers, self._facts)
        alone = [file for file in (*own, *beside_it) if runs_alone(file, self.flow)]
        if alone:
            self._notes += [note for note in read_again if note.file in alone]
            writable = [file for file in (*own, *quiet) if file in alone]
            with self._left_to_a_person():
                self._order_files(alone, writable, guards, decided, readers)
        self.guarded = [
            f for f in self.guarded if f.edits and f.edits.claims.lengths == known[f] and not readers.waits_in(f)
        ]
        for note in self._notes:
            if note.help is not None:
                self._review(note)
            else:
                self._report(Severity.CONVERTED, note)

    def _write_engines(self) -> None:
        use_star_imports(self.flow)
        EngineWriter(self.plan, self._runtime, self._converted).write()
        follow_engines(self.plan, self._converted, self._review)
        write_calls(self.plan, self._runtime, self._converted)
        pass_engines(self.plan, self._converted)
        free_engines(self.plan, self._converted)
        self._notes += [*self.plan.notes, *calls_left(self.plan)]

    def _share_work(self, beside: list[SourceFile]) -> set[int]:
        """Divide the data, and let ranks decide together; return the statements of decisions, by identity."""
        unwrap(self._facts, beside, self._runtime, self._converted, self._review)
        share_data(self.plan, beside, self._runtime, self._converted, self._review)
        decided, self._values = agree(self.plan, beside, self._staying, self._runtime, self._converted, self._review)
        drawing = [file for file in beside if may_run_alone(file, self._facts)]  # else ranks may draw others on purpose
        self._notes += unshared_generators(drawing, self.flow)
        self._notes += separate_environments(drawing, self.flow)
        return decided

    def _start_ranks(self, beside: list[SourceFile]) -> None:
        shared = [file for file in self._fixed if file not in self._staying]
        self._notes += start_ranks(self._facts, self.files, beside, shared, self._runtime, self._converted)
        touched = [f for f in self.flow.files.values() if f.edits and f not in self.files and f not in self._others]
        self.files = [*self.files, *touched]

    def _helpers(self, beside: list[SourceFile]) -> list[SourceFile]:
        """Return the files that run with the loop, and neither step nor belong to another part or a framework."""
        stepping = {step.file for step in self._facts.operations.steps}
        others = [f for f in beside if f not in stepping and f not in self._others]
        return [f for f in others if framework_script(f.path, f.data) is None]

    def _place_ranks(self, program: list[SourceFile], helpers: list[SourceFile]) -> None:
        """Let each rank have a device and an argument for its number."""
        with self._left_to_a_person():
            self._notes += RankDevices(self._facts, is_called(INIT, self.flow), self._converted).free(program)
        argument = LauncherArgument(self._facts, self._changeable, self._runtime, self._converted)
        self._notes += [*argument.add(self.files, helpers), *ranks_of_mpi(program, self.flow)]

    def _make_data(self, own: list[SourceFile], beside_it: list[SourceFile], quiet: list[SourceFile]) -> None:
        """Let rank 0 make data and folders first."""
        prepared = PreparedData(self.plan, [*own, *quiet], self._runtime)
        self._notes += prepared.let_rank_0_begin(self._converted)
        with self._left_to_a_person():
            make_folders_once(self._facts, own, beside_it, self._runtime, self._converted)

    def _quieten(
        self, guards: OutputGuards, own: list[SourceFile], beside_it: list[SourceFile], quiet: list[SourceFile]
    ) -> None:
        """Let rank 0 alone print, record and save."""
        guards.guard_output(own, quiet)
        self._notes += quiet_loggers(self._facts, [*own, *quiet], self._runtime, self._converted)
        self._notes += guards.left_as_it_is(f for f in beside_it if f not in quiet)

    def _order_files(
        self,
        program: list[SourceFile],
        writable: list[SourceFile],
        guards: OutputGuards,
        decided: set[int],
        readers: FileReaders,
    ) -> None:
        """Let ranks have the same names for files, and read what rank 0 has written."""
        facts, flow, runtime, converted = self._facts, self.flow, self._runtime, self._converted
        self._notes += [*commands_of_all_ranks(program, flow), *errors_of_one_rank(facts), *files_of_one_rank(facts)]
        self._notes += LibraryWriters(self.plan).notes(program)
        self._notes += share_names_not_taken(facts, program, writable, runtime, converted)
        if facts.options.runtime:
            self._notes += decide_where_folders_are(facts, writable, runtime, converted)
            written = list(guards.written())
            self._notes += share_looks(facts, program, writable, written, decided, readers, runtime, converted)
            for share in (share_time_stamps, share_temporary_folders):
                self._notes += share(program, flow, runtime, converted)
        self._notes += wait_for_saves(self.plan, program, decided, self._values, readers, runtime, converted)

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
