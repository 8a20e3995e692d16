"""Names with a number that no other run has yet: all ranks have the one that rank 0 finds."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import libcst as cst

from ds_migrate.plain.dataflow.by_rank.rank_conditions import RankConditions
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.decisions.plan import Note
from ds_migrate.plain.edits.expressions import wrap
from ds_migrate.plain.edits.runtime_names import Converted, RuntimeNames
from ds_migrate.plain.ranks.files.looks import path_of, paths_looked_for
from ds_migrate.plain.ranks.processes.time_texts import has_time_stamp
from ds_migrate.plain.ranks.rank_guards import is_guarded
from ds_migrate.plain.recognition.facts import LoopFacts
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import called_name, dotted, walk
from ds_migrate.syntax.source import SourceFile

Found = tuple[SourceFile, cst.CSTNode]
LISTS = frozenset({"listdir", "scandir", "glob", "iglob", "iterdir", "rglob"})


def share_names_not_taken(
    facts: LoopFacts,
    files: Sequence[SourceFile],
    changeable: Collection[SourceFile],
    runtime: RuntimeNames,
    converted: Converted,
) -> Iterator[Note]:
    """Give all ranks the name that rank 0 finds, where a loop looks for one that is not taken, or counts what is there.

    Yield a note where that cannot be written: a rank may find what rank 0 has made by then.

    Args:
        changeable: those of the files that may change.
    """
    for start in files:
        for file, node in (*_searches(start), *_counts(start, facts)):
            if is_guarded(node, file):
                continue
            calls = _calls_to_share(node, file, facts) if facts.options.runtime else []
            calls = calls if all(other in changeable for other, _ in calls) else []
            for other, call in calls:
                name = runtime.name(other, "rank_0_text")
                if other.edits.once(call, name):
                    wrap(other, call, name)
                    converted(Code.PLAIN_AGREEMENT, other, call, "all ranks use the name that rank 0 finds")
            if not calls:
                message = "each rank looks for a name that is not taken, and rank 0 may have taken it by then"
                advice = "have all ranks use the name that rank 0 finds: rank_0_text(name)"
                yield Note(Code.PLAIN_RANK_ZERO, file, node, message, advice)


def _searches(file: SourceFile) -> Iterator[Found]:
    """Yield the loops that look for a name which no file has yet."""
    for loop in file.nodes(cst.While, cst.For):
        tests = [loop.test] if isinstance(loop, cst.While) else [node.test for node in _ways_out(loop, file)]
        if any(paths_looked_for(test, file) for test in tests):
            yield file, loop


def _counts(file: SourceFile, facts: LoopFacts) -> Iterator[Found]:
    """Yield the listings of a folder that give the name of another one its number."""
    for call in file.nodes(cst.Call):
        path = path_of(call) if _is_folder_call(call) else None
        if path is not None:
            yield from _listings(path, file, facts, depth=3)


def _is_folder_call(call: cst.Call) -> bool:
    return called_name(call) in ("makedirs", "mkdir")


def _listings(node: cst.BaseExpression, file: SourceFile, facts: LoopFacts, depth: int) -> Iterator[Found]:
    """Yield the calls that list a folder for a text: directly, through variables, or in functions that return it."""
    flow = facts.flow
    for part in walk(node):
        if isinstance(part, cst.Call) and called_name(part) in LISTS:
            yield file, part
        if isinstance(part, cst.Name) and depth:
            for value in file.values_of({part.value}, flow.scopes(file).owner(part.value, part)):
                yield from _listings(value, file, facts, depth - 1)
        if isinstance(part, cst.Call) and depth:
            for callee in of_kind(flow.values(part.func, file), Kind.FUNCTION, Kind.METHOD):
                for returned in flow.file(callee).returned(flow.node(callee)):
                    if returned is not None:
                        yield from _listings(returned, flow.file(callee), facts, depth - 1)


def _calls_to_share(node: cst.CSTNode, file: SourceFile, facts: LoopFacts) -> list[tuple[SourceFile, cst.Call]]:
    """Return the calls of the function around a search, of which all ranks can have rank 0's result.

    There are none where one is not assigned, some ranks may not come to it, or each makes the folder in the function.
    """
    function = file.function(node)
    calls = list(facts.flow.callers.of(function)) if function is not None else []
    made = [call for call in file.nodes(cst.Call, below=function) if _is_folder_call(call)] if calls else []
    conditions = RankConditions(facts.flow, lambda node, file: has_time_stamp(node, file, facts.flow))
    made = [call for call in made if file.position(call) > file.position(node)]
    can_share = all(is_guarded(call, file) for call in made) and all(
        isinstance(other.parent(call), cst.Assign) and not is_guarded(call, other) and conditions.reach_all(call, other)
        for other, call in calls
    )
    return calls if can_share else []


def _ways_out(loop: cst.For, file: SourceFile) -> list[cst.If]:
    """Return the conditions under which a loop that counts ends."""
    is_count = isinstance(loop.iter, cst.Call) and (dotted(loop.iter.func) or "").endswith(("range", "count"))
    found = file.nodes(cst.If, below=loop.body) if is_count else []
    return [node for node in found if file.nodes(cst.Break, cst.Return, below=node.body)]
