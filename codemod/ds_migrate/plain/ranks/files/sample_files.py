"""Files that are named by the samples of a batch, of which rank 0 alone would write those of its share."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.dataflow.rank_values import RankValues
from ds_migrate.plain.decisions.plan import Note, ProgramPlan
from ds_migrate.plain.ranks.files.sample_names import SampleNames
from ds_migrate.plain.ranks.idle_code import is_idle
from ds_migrate.plain.ranks.rank_guards import is_guarded
from ds_migrate.plain.ranks.rank_zero.output_calls import OutputCalls
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.source import SourceFile


def sample_files(plan: ProgramPlan, files: list[SourceFile], values: RankValues) -> Iterator[Note]:
    """Yield a note for each place where files are written whose names a batch gives: each rank has other samples."""
    calls = OutputCalls(plan)
    names = SampleNames(plan.facts.flow, plan.facts.callers, values)
    for file in files:
        for call in file.nodes(cst.Call):
            path = calls.path_written(call, file)
            if path is None or is_guarded(call, file) or is_idle(call, file, plan.facts):
                continue
            if names.are_in(path, file):
                message = "these files are named by the samples of a batch: rank 0 alone writes those of its share"
                advice = "let each rank write those of its share here, or loop over a separate loader of all data"
                yield Note(Code.PLAIN_RANK_ZERO, file, call, message, advice)
