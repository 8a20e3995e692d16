"""The edits of a program that is converted."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import libcst as cst

from ds_migrate.findings import Severity
from ds_migrate.plain.dataflow.calls import is_called
from ds_migrate.plain.dataflow.files_beside import files_beside
from ds_migrate.plain.dataflow.torch_names import INIT
from ds_migrate.plain.decisions.plan import Note, ProgramPlan
from ds_migrate.plain.edits.engine_arguments import pass_engines
from ds_migrate.plain.edits.engine_calls import write_calls
from ds_migrate.plain.edits.engine_creation import EngineWriter
from ds_migrate.plain.edits.runtime_names import RuntimeNames
from ds_migrate.plain.ranks.agreement import agree
from ds_migrate.plain.ranks.commands import commands_of_all_ranks
from ds_migrate.plain.ranks.data_shares import share_data
from ds_migrate.plain.ranks.devices import RankDevices
from ds_migrate.plain.ranks.engine_device import follow_engines
from ds_migrate.plain.ranks.file_readers import FileReaders
from ds_migrate.plain.ranks.launcher_argument import add_arguments
from ds_migrate.plain.ranks.rank_zero import OutputGuards
from ds_migrate.plain.ranks.rank_zero_files import write_once
from ds_migrate.plain.ranks.rank_zero_folders import make_folders_once, names_not_taken
from ds_migrate.plain.ranks.rank_zero_loggers import quiet_loggers
from ds_migrate.plain.ranks.rank_zero_waits import wait_for_saves
from ds_migrate.plain.ranks.start import start_ranks
from ds_migrate.plain.ranks.time_stamps import share_temporary_folders, share_time_stamps
from ds_migrate.plain.ranks.unordered_sets import numbered_sets
from ds_migrate.plain.ranks.unwrapping import unwrap
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.source import SourceFile

Report = Callable[[Severity, Note], None]


class Editor:
    """Claims the edits of one part of a program, once everything about it is decided.

    Args:
        files: those of the part.
        others: those of other parts, which are edited for them, or stay as they are.
        kept: those whose output stays as it is.
        report: gets a note for each edit.
    """

    def __init__(
        self,
        plan: ProgramPlan,
        files: Sequence[SourceFile],
        others: Collection[SourceFile],
        kept: Collection[SourceFile],
        runtime: RuntimeNames,
        report: Report,
    ) -> None:
        self.plan = plan
        self.files = list(files)
        self._others = others
        self._kept = kept
        self.flow = plan.facts.flow
        self._report = report
        self._runtime = runtime
        self.guarded: list[SourceFile] = []  # those in which nothing but output changes, with no wait for it

    def apply(self) -> None:
        EngineWriter(self.plan, self._runtime, self._converted).write()
        follow_engines(self.plan, self._converted)
        write_calls(self.plan, self._runtime, self._converted)
        pass_engines(self.plan, self._converted)
        unwrap(self.plan.facts, self._converted, self._review)
        beside = files_beside(self.files, self.flow)
        share_data(self.plan, beside, self._runtime, self._converted, self._review)
        decided = agree(self.plan, beside, self._runtime, self._converted, self._review)
        notes = [*self.plan.notes, *numbered_sets(beside, self.flow)]
        start_ranks(self.plan.facts, self.files, beside, self._runtime, self._converted)
        touched = [f for f in self.flow.files.values() if f.edits and f not in self.files and f not in self._others]
        self.files = [*self.files, *touched]
        stepping = {step.file for step in self.plan.facts.operations.steps}
        helpers = [f for f in beside if f not in stepping and f not in self._others]
        beside_it = [f for f in helpers if f not in self.files]
        quiet = [f for f in beside_it if f not in self._kept]
        guards = OutputGuards(self.plan, self._runtime, self._converted)
        guards.guard_saves(f for f in beside_it if f not in quiet)
        program = [*self.files, *(f for f in helpers if f not in self.files)]
        notes += RankDevices(self.flow, not self._starts_alone(), self._converted).free(program)
        add_arguments(self.plan.facts, self.files, self._runtime, self._converted)
        make_folders_once(self.plan.facts, self.files, beside_it, self._runtime, self._converted)
        self.guarded = [f for f in quiet if not f.edits]
        guards.guard_output(self.files, quiet)
        notes += quiet_loggers(self.plan.facts, [*self.files, *quiet], self._runtime, self._converted)
        others = [f for f in program if f not in self.files and f not in quiet]
        notes += guards.left_as_it_is(others)
        starts_alone = self._starts_alone()
        readers = FileReaders(self.plan.facts, program, starts_alone, self._runtime, self._converted)
        read_again = write_once(self.plan.facts, [*self.files, *quiet], others, readers, self._runtime, self._converted)
        known = {f: f.edits.lengths for f in self.guarded}
        if starts_alone:
            notes += [*commands_of_all_ranks(program, self.flow), *names_not_taken(program)]
            notes += [*read_again, *guards.wait_for_written(readers)]
            if self.plan.facts.options.runtime:
                for share in (share_time_stamps, share_temporary_folders):
                    share(program, self.flow, self.plan.facts.callers, self._runtime, self._converted)
            notes += wait_for_saves(self.plan, program, decided, readers, self._runtime, self._converted)
        self.guarded = [f for f in self.guarded if f.edits and f.edits.lengths == known[f] and not readers.waits_in(f)]
        for note in notes:
            self._report(Severity.REVIEW if note.help is not None else Severity.CONVERTED, note)

    def _starts_alone(self) -> bool:
        """Return whether the program was written for one process, and never waits for others."""
        return not is_called(INIT, self.flow)

    @property
    def missing(self) -> list[str]:
        """The helpers that the conversion needs, although the runtime may not be used."""
        return self._runtime.missing

    def _converted(self, code_: Code, file: SourceFile, node: cst.CSTNode, message: str) -> None:
        self._report(Severity.CONVERTED, Note(code_, file, node, message))

    def _review(self, note: Note) -> None:
        self._report(Severity.REVIEW, note)
