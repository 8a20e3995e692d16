"""Errors that one rank alone catches, and with which it leaves what the others do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from ds_migrate.plain.dataflow.branches.blocks import JUMPS, is_exit
from ds_migrate.plain.dataflow.calls.callers import Callers
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.decisions.plan import Note
from ds_migrate.plain.recognition.facts import LoopFacts
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import dotted, elements, last_statement, walk
from ds_migrate.syntax.source import SourceFile

_Handler = tuple[SourceFile, cst.ExceptHandler]
_MEANT = frozenset({"KeyboardInterrupt", "StopIteration", "StopTraining"})
_OF_ALL_RANKS = frozenset({"ImportError", "ModuleNotFoundError"})  # they have the same packages


def errors_of_one_rank(facts: LoopFacts) -> Iterator[Note]:
    """Yield a note for each handler of errors of a backward pass or a step behind which their loop continues."""
    reported: set[int] = set()
    for place in (*facts.operations.backwards, *facts.operations.steps):
        for file, handler in _handlers(place.node, place.file, facts.flow.callers, set()):
            is_common = _ends(handler, file) or _is_jump(handler, file, facts)
            if id(handler) not in reported and not is_common:
                reported.add(id(handler))
                message = "a rank that fails here alone continues with the next batch, and the others wait for it"
                advice = "let the error end the program, or look for its cause before the forward pass, on all ranks"
                yield Note(Code.PLAIN_AGREEMENT, file, handler, message, advice)


def _handlers(
    node: cst.CSTNode, file: SourceFile, callers: Callers, seen: set[int], inside: Sequence[_Handler] = ()
) -> Iterator[_Handler]:
    """Yield the handlers of errors at a node that are in a loop, of its function or of one that calls it.

    Args:
        seen: the functions whose calls were followed, by identity.
        inside: the handlers around the node in functions that this call leads to, in no loop there.
    """
    found: list[_Handler] = []
    around = [*inside]
    inner = node
    for outer in file.ancestors(node):
        if isinstance(outer, cst.Try) and inner is outer.body:
            around += [(file, handler) for handler in outer.handlers if not _is_meant(handler)]
        elif isinstance(outer, (cst.For, cst.While)):
            found = [*around]
        elif isinstance(outer, cst.FunctionDef):
            break
        inner = outer
    yield from found
    function = file.function(node)
    if function is not None and id(function) not in seen:
        seen.add(id(function))
        for other, call in callers.of(function):
            yield from _handlers(call, other, callers, seen, around)


def _is_meant(handler: cst.ExceptHandler) -> bool:
    """Return whether a handler is for what ends a loop, or for imports, rather than for errors of one rank."""
    names = {dotted(part) for part in elements(handler.type)} if handler.type is not None else set()
    return bool(names & _MEANT) or (bool(names) and names <= _OF_ALL_RANKS)


def _is_jump(handler: cst.ExceptHandler, file: SourceFile, facts: LoopFacts) -> bool:
    """Return whether a handler is for a class of its file that conditions in its function alone raise.

    All ranks agree on these conditions, as on those of other jumps.
    """
    caught = handler.type
    if not isinstance(caught, cst.Name) or not of_kind(facts.flow.values(caught, file), Kind.CLASS):
        return False
    uses = [(home, node) for home, node in facts.flow.nodes(cst.Name) if node.value == caught.value]
    return all(home is file and _is_raised(node, handler, file) for home, node in uses)


def _is_raised(name: cst.Name, handler: cst.ExceptHandler, file: SourceFile) -> bool:
    """Return whether a name of a class is where that is defined, caught, or raised by a condition in a function."""
    around = file.parent(name)
    if isinstance(around, cst.ClassDef):
        return around.name is name
    if isinstance(around, cst.ExceptHandler):
        return True
    if isinstance(around, cst.Call):
        around = file.parent(around)
    function = file.function(handler)
    above = [outer for outer in file.ancestors(name) if file.function(outer) is function]
    is_open = any(isinstance(outer, (cst.ExceptHandler, cst.While)) for outer in above)
    is_chosen = any(isinstance(outer, cst.If) for outer in above)
    return isinstance(around, cst.Raise) and file.function(name) is function and is_chosen and not is_open


def _ends(handler: cst.ExceptHandler, file: SourceFile) -> bool:
    """Return whether a handler ends the program whatever the error is."""
    if file.nodes(*JUMPS, below=handler.body):
        return False
    last = last_statement(handler.body)
    calls = file.nodes(cst.Call, below=last) if isinstance(last, cst.BaseSmallStatement) else []
    return isinstance(last, cst.Raise) or any(map(is_exit, calls))


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
    return "FileExistsError" in names and bool(file.nodes(*JUMPS, below=handler.body))
