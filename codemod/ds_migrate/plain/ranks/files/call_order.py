"""The order in which a program may run two of its calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from ds_migrate.plain.dataflow.calls.callers import are_exclusive, is_repeated
from ds_migrate.plain.dataflow.calls.idle_functions import idle_functions
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.syntax.source import SourceFile

Place = tuple[SourceFile, cst.Call]
Way = tuple[SourceFile, cst.CSTNode, cst.CSTNode]  # the places in one function, or module, that lead to two calls


class CallOrder:
    """The calls of a program, and which of them may run behind which, by the calls that lead to them."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow

    def may_follow(self, read: Place, write: Place) -> bool:
        """Return whether a call may run behind another one, as far as the calls of the functions around them show."""
        shared = list(self.ways(write, read))
        if not shared:
            return not self._are_apart(read, write)
        return any(_comes_first(*way) or _is_in_one_loop(*way) for way in shared)

    def comes_behind(self, read: Place, writes: Iterable[Place]) -> bool:
        """Return whether the calls of a program lead to a call behind one of others."""
        ways = (way for write in writes for way in self.ways(write, read))
        return any(_comes_first(*way) or _is_in_one_loop(*way) or _is_repeated(*way) for way in ways)

    def _are_apart(self, one: Place, other: Place) -> bool:
        """Return whether no run of the program comes to both of two calls."""
        return idle_functions(self._flow).are_apart(one[::-1], other[::-1])

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
        todo: list[Place] = [place]
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


def _is_repeated(file: SourceFile, one: cst.CSTNode, other: cst.CSTNode) -> bool:
    """Return whether two nodes are one call that runs several times."""
    return one is other and is_repeated(file, one)


def _is_in_one_loop(file: SourceFile, one: cst.CSTNode, other: cst.CSTNode) -> bool:
    """Return whether a loop, in their function, holds two different nodes."""
    function = file.function(one)
    loops = {id(a) for a in file.ancestors(one) if isinstance(a, (cst.For, cst.While)) and file.function(a) is function}
    return one is not other and any(id(outer) in loops for outer in file.ancestors(other))
