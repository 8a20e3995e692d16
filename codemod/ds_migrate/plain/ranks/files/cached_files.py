"""Files that a program makes where they are not there yet: all ranks have rank 0's view of whether they are.

A rank that looks a moment later would find what rank 0 has written by then, perhaps in part, and take the other branch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import libcst as cst

from ds_migrate.plain.dataflow.branches.blocks import is_exit
from ds_migrate.plain.dataflow.by_rank.rank_conditions import FIRST, RankConditions
from ds_migrate.plain.decisions.plan import Note
from ds_migrate.plain.edits.runtime_names import Converted, RuntimeNames
from ds_migrate.plain.ranks.agreement.agreed_conditions import let_rank_0_decide
from ds_migrate.plain.ranks.files.file_readers import FileReaders, Read, Write
from ds_migrate.plain.ranks.files.looks import looks_below
from ds_migrate.plain.ranks.rank_guards import is_guarded
from ds_migrate.plain.recognition.facts import LoopFacts
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.branches import upwards
from ds_migrate.syntax.source import SourceFile

MESSAGE = "a rank may find this file once rank 0 has written it, and take the other branch"
ADVICE = "let rank 0 decide for all ranks: if rank_0_decides(os.path.exists(path))"


def share_looks(
    facts: LoopFacts,
    files: Iterable[SourceFile],
    changeable: Collection[SourceFile],
    written: Iterable[Write],
    decided: set[int],
    readers: FileReaders,
    runtime: RuntimeNames,
    converted: Converted,
) -> Iterator[Note]:
    """Let rank 0 look for all ranks whether a file is there that it may write next; yield where it cannot.

    Args:
        changeable: those of the files that may change.
        written: the calls that write files, with their paths.
        decided: conditions that rank 0 decides already, by identity of their statements.
    """
    conditions = RankConditions(facts.flow)
    looks = [(file, call) for file in files for call in looks_below(file.module, file)]
    for write in written:
        is_read = readers.is_read(write)
        if is_read:
            yield from (Note(Code.PLAIN_RANK_ZERO, *read, MESSAGE, ADVICE) for read in _attempts(write, readers))
        for file, call in looks:
            if readers.looks_for(call, file, write) and not _is_after_training(call, file, write, facts, readers):
                statement, test = _deciding(call, file)
                if not is_read and not ends_by(statement, file):
                    continue
                if id(statement) in decided or is_guarded(statement, file) or readers.waits_before(statement):
                    continue
                if readers.call_order.is_led_by(FIRST, (file, call)):
                    continue  # the other ranks look when rank 0 has written it
                decided.add(id(statement))
                if test is None or file not in changeable or not conditions.reach_all(statement, file):
                    yield Note(Code.PLAIN_RANK_ZERO, file, call, MESSAGE, ADVICE)
                    continue
                let_rank_0_decide(test, file, runtime)
                converted(Code.PLAIN_AGREEMENT, file, call, "rank 0 checks for all ranks whether the file exists")


def _attempts(write: Write, readers: FileReaders) -> Iterator[Read]:
    """Yield the calls that try to read a file, where it is written if they fail."""
    for inner, outer in upwards(write[0], write[1]):
        if isinstance(outer, cst.Try) and isinstance(inner, cst.ExceptHandler):
            yield from readers.below(outer.body, write)


def _deciding(call: cst.Call, file: SourceFile) -> tuple[cst.BaseStatement, cst.BaseExpression | None]:
    """Return the statement that decides by a call, and its condition; None where that cannot be rank 0's."""
    for inner, outer in upwards(file, call):
        if isinstance(outer, (cst.If, cst.While)) and inner is outer.test:
            return outer, outer.test
        is_truth = isinstance(inner, (cst.Call, cst.UnaryOperation, cst.BooleanOperation))
        if isinstance(outer, cst.Assign) and is_truth and isinstance(inner, cst.BaseExpression):
            return file.statement(call), inner
        if not isinstance(outer, (cst.UnaryOperation, cst.BooleanOperation, cst.Arg)):
            break
    return file.statement(call), None


def ends_by(statement: cst.BaseStatement, file: SourceFile) -> bool:
    """Return whether a statement may end the program, as where a file is there already that it would write."""
    return bool(file.nodes(cst.Raise, below=statement)) or any(map(is_exit, file.nodes(cst.Call, below=statement)))


def _is_after_training(call: cst.Call, file: SourceFile, write: Write, facts: LoopFacts, readers: FileReaders) -> bool:
    """Return whether ranks train between a look and each write behind it, where they wait for each other."""
    return not any(
        not _trains_between(earlier, later, at, facts)
        for at, earlier, later in readers.call_order.ways((file, call), write[:2])
    )


def _trains_between(earlier: cst.CSTNode, later: cst.CSTNode, file: SourceFile, facts: LoopFacts) -> bool:
    """Return whether a step, or a call that leads to one, is between two nodes of a function, or is the later one."""
    function, steps = file.function(earlier), facts.operations.steps
    places: list[cst.CSTNode] = [s.node for s in steps if s.file is file and s.function is function]
    places += [call for s in steps for call in facts.flow.callers.leading_to(s.function, file, function)]
    return any(file.position(earlier) < file.position(place) <= file.position(later) for place in places)
