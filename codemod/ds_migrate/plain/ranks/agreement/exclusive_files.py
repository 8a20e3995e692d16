"""Files that only one process can create: the rank that does trains alone, where the others pass over what is taken."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.dataflow.calls.callers import Callers
from ds_migrate.plain.decisions.plan import Note
from ds_migrate.plain.recognition.facts import LoopFacts
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import dotted, walk
from ds_migrate.syntax.source import SourceFile

_JUMPS = (cst.Continue, cst.Break, cst.Return)


def files_of_one_rank(facts: LoopFacts) -> Iterator[Note]:
    """Yield a note for each handler of FileExistsError that passes over a step behind it."""
    reported: set[int] = set()
    for place in facts.operations.steps:
        for file, handler in _passing(place.node, place.file, facts.flow.callers, set()):
            if id(handler) not in reported:
                reported.add(id(handler))
                message = "one rank creates this file and trains, while the others pass over it"
                advice = "let rank 0 create it, and decide for all ranks: if not rank_0_decides(created): continue"
                yield Note(Code.PLAIN_AGREEMENT, file, handler, message, advice)


def _passing(
    node: cst.CSTNode, file: SourceFile, callers: Callers, seen: set[int]
) -> Iterator[tuple[SourceFile, cst.ExceptHandler]]:
    """Yield such handlers before a node, in the blocks around it, and around the calls that lead to its function.

    Args:
        seen: the functions whose calls were followed, by identity.
    """
    inner = node
    for outer in file.ancestors(node):
        if isinstance(outer, cst.IndentedBlock):
            for statement in outer.body:
                if statement is inner:
                    break
                if isinstance(statement, cst.Try):
                    yield from ((file, one) for one in statement.handlers if _passes(one, file))
        if isinstance(outer, cst.FunctionDef):
            break
        inner = outer
    function = file.function(node)
    if function is not None and id(function) not in seen:
        seen.add(id(function))
        for other, call in callers.of(function):
            yield from _passing(call, other, callers, seen)


def _passes(handler: cst.ExceptHandler, file: SourceFile) -> bool:
    """Return whether a handler passes over what is behind it where a file is there already."""
    names = {dotted(part) for part in walk(handler.type)} if handler.type is not None else set()
    return "FileExistsError" in names and bool(file.nodes(*_JUMPS, below=handler.body))
