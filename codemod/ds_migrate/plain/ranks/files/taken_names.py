"""Names of files and folders that a program looks for, and takes where there are none: rank 0 may be the first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from ds_migrate.plain.dataflow.branches.blocks import is_exit
from ds_migrate.plain.dataflow.by_rank.rank_conditions import RankConditions, runs_in_turn
from ds_migrate.plain.dataflow.calls.callers import Callers
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.decisions.plan import Note
from ds_migrate.plain.edits.runtime_names import Converted, RuntimeNames
from ds_migrate.plain.ranks.agreement.agreed_conditions import let_rank_0_decide
from ds_migrate.plain.ranks.files.looks import path_of, paths_looked_for
from ds_migrate.plain.ranks.rank_guards import is_guarded
from ds_migrate.plain.ranks.rank_zero.commands import asks
from ds_migrate.plain.ranks.rank_zero.made_folders import makes_folder
from ds_migrate.plain.recognition.facts import LoopFacts
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.one_line import expression_text
from ds_migrate.syntax.source import SourceFile

_LEAVES = (cst.Raise, cst.Return, cst.Break, cst.Continue)


def decide_where_folders_are(
    facts: LoopFacts, files: Sequence[SourceFile], runtime: RuntimeNames, converted: Converted
) -> Iterator[Note]:
    """Let rank 0 look for a folder before it makes it, where all ranks take another way if it is there.

    Yield a note where they cannot ask it, as only some of them may come there.
    """
    conditions = RankConditions(facts.flow)
    for file in files:
        made = [
            (call, path) for call in file.nodes(cst.Call)
            if makes_folder(call, file, facts) and (path := path_of(call)) is not None
        ]  # fmt: skip
        for branch in file.nodes(cst.If) if made else ():
            if runs_in_turn(branch, file):
                continue  # the others find what rank 0 has made
            looked_for = paths_looked_for(branch.test, file)
            is_first = any(
                expression_text(path) in looked_for
                and file.function(call) is file.function(branch)
                and file.position(call) > file.position(branch.test)
                for call, path in made
            )
            if (
                not is_first
                or not _has_other_way(branch, file, facts.flow)
                or _is_of_rank_zero(branch.test, file, facts.flow.callers)
            ):
                continue
            if conditions.reach_all(branch, file):
                let_rank_0_decide(branch.test, file, runtime)
                converted(Code.PLAIN_RANK_ZERO, file, branch.test, "rank 0 checks whether this folder exists")
            else:
                message = "each rank looks for this folder, and rank 0 may have made it by then"
                advice = "have rank 0 look for all ranks, where all of them come: rank_0_decides(condition)"
                yield Note(Code.PLAIN_RANK_ZERO, file, branch.test, message, advice)


def _is_of_rank_zero(
    node: cst.CSTNode, file: SourceFile, callers: Callers, above: frozenset[cst.FunctionDef] = frozenset()
) -> bool:
    """Return whether a condition on the rank is around a node, or around a call of its function."""
    function = file.function(node)
    if is_guarded(node, file) or function is None or function in above:
        return is_guarded(node, file)
    return any(_is_of_rank_zero(call, caller, callers, above | {function}) for caller, call in callers.of(function))


def _has_other_way(branch: cst.If, file: SourceFile, flow: Flow) -> bool:
    """Return whether a branch does more than make, clear or print something: it sets a name, asks, leaves, or exits."""
    ends = any(is_exit(call) or asks(call, file, flow) for call in file.nodes(cst.Call, below=branch))
    return ends or bool(file.nodes(cst.Assign, cst.AnnAssign, cst.AugAssign, *_LEAVES, below=branch))
