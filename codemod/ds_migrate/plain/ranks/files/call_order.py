"""The order in which a program may run two of its calls."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.dataflow.calls.callers import are_exclusive, is_repeated
from ds_migrate.plain.dataflow.calls.idle_functions import idle_functions
from ds_migrate.plain.ranks.idle_code import is_idle
from ds_migrate.plain.recognition.facts import LoopFacts
from ds_migrate.syntax.source import SourceFile

Place = tuple[SourceFile, cst.CSTNode]
Way = tuple[SourceFile, cst.CSTNode, cst.CSTNode]  # the places in one function, or module, that lead to two calls


class CallOrder:
    """The calls of a program, and which of them may run behind which, by the calls that lead to them."""

    def __init__(self, facts: LoopFacts) -> None:
        self._facts = facts
        self._flow = facts.flow

    def may_follow(self, read: Place, write: Place) -> bool:
        """Return whether a call may run behind another one, as far as the calls of the functions around them show."""
        if not list(self.ways(write, read)):
            return not idle_functions(self._flow).are_apart(read[::-1], write[::-1])
        return any(self.following(read, write))

    def following(self, read: Place, write: Place) -> Iterator[Place]:
        """Yield the places that lead to a call where others before them lead to another one, in runs that train."""
        for file, first, second in self.ways(write, read):
            is_again = _is_in_one_loop(file, first, second) or (first is second and is_repeated(file, first))
            if (is_again or _comes_first(file, first, second)) and not is_idle(second, file, self._facts):
                yield file, second

    def ways(self, one: Place, other: Place) -> Iterator[Way]:
        """Yield the places in one function, or module, that lead to two calls."""
        ones, others = dict(self._ways(one)), dict(self._ways(other))
        for key in (key for key in ones if key in others):
            for file, first in ones[key]:
                for _, second in others[key]:
                    yield file, first, second

    def is_led_by(self, mark: str, place: Place) -> bool:
        """Return whether a marked statement is around a call, or around one that leads to it."""
        return any(
            file.edits.is_done(outer, mark)
            for _, found in self._ways(place)
            for file, node in found
            for outer in (node, *file.ancestors(node))
        )

    def _ways(self, place: Place) -> Iterator[tuple[int, list[Place]]]:
        """Yield the functions that lead to a call, by identity, with the calls in them that do; of modules likewise."""
        found: dict[int, list[Place]] = {}
        todo = [place]
        while todo:
            file, node = todo.pop()
            function = file.function(node)
            known = found.setdefault(id(function or file.module), [])
            if any(other is node for _, other in known):
                continue
            known.append((file, node))
            todo += self._flow.callers.of(function) if function is not None else ()
        yield from found.items()


def _comes_first(file: SourceFile, one: cst.CSTNode, other: cst.CSTNode) -> bool:
    """Return whether a node of a function may run before another one, as they are written."""
    return file.position(one) < file.position(other) and not are_exclusive(file, one, other)


def _is_in_one_loop(file: SourceFile, one: cst.CSTNode, other: cst.CSTNode) -> bool:
    """Return whether a loop, in their function, holds two different nodes."""
    function = file.function(one)
    loops = {id(a) for a in file.ancestors(one) if isinstance(a, (cst.For, cst.While)) and file.function(a) is function}
    return one is not other and any(id(outer) in loops for outer in file.ancestors(other))
