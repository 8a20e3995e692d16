"""Files that are named by samples, of which each rank has others: by a batch, or by the dataset that gives them."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.dataflow.by_rank.rank_values import RankValues
from ds_migrate.plain.decisions.plan import Note, ProgramPlan
from ds_migrate.plain.ranks.files.sample_names import ItemNames, SampleNames
from ds_migrate.plain.ranks.idle_code import is_idle
from ds_migrate.plain.ranks.rank_guards import is_guarded
from ds_migrate.plain.ranks.rank_zero.output_calls import OutputCalls
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.source import SourceFile


def sample_files(plan: ProgramPlan, files: list[SourceFile], values: RankValues) -> Iterator[Note]:
    """Yield a note for each place where files are written that samples name: rank 0 writes those of a batch alone.

    Those of a dataset are written by each rank, and read by those that draw the same sample, as for evaluation.
    """
    calls = OutputCalls(plan)
    names = _names(plan, values)
    items = ItemNames(plan.facts.flow)
    for file in files:
        for call in file.nodes(cst.Call):
            path = calls.path_written(call, file) or calls.path_of_rank(call, file)
            if path is None or is_guarded(call, file) or is_idle(call, file, plan.facts):
                continue
            if items.are_in(path, file):
                message = "each rank writes the files of samples that it draws: one that draws the same may read a part"
                advice = "write the file under another name, one for each rank, and rename it: os.replace()"
                yield Note(Code.PLAIN_RANK_ZERO, file, call, message, advice)
            elif names.are_in(path, file) and _names(plan, values.of_samples).are_in(path, file):
                message = "these files are named by the samples of a batch: rank 0 alone writes those of its share"
                advice = "let each rank write those of its share here, or loop over a separate loader of all data"
                yield Note(Code.PLAIN_RANK_ZERO, file, call, message, advice)


def _names(plan: ProgramPlan, values: RankValues) -> SampleNames:
    return SampleNames(plan.facts.flow, values)
