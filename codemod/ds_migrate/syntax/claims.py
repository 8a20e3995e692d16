"""The edits of a file that are claimed, before they are applied; the latest can be taken back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sized
from typing import Any, TypeAlias

import libcst as cst

from ds_migrate.syntax.nodes import code

Change = Callable[[cst.CSTNode], "cst.CSTNode | cst.RemovalSentinel | cst.FlattenSentinel[cst.CSTNode]"]
Text: TypeAlias = str | Callable[[cst.CSTNode], str]
Lengths: TypeAlias = dict[tuple[int, cst.CSTNode], int]


class Claims:
    """The edits that are claimed, by the nodes where they are made.

    Attributes:
        changes: functions that change a node, one after the other.
        before: lines between a statement and its comments.
        above: lines above its comments.
        after: lines behind it.
        expanded: whole statements for small statements of a line, by the names that mark their places.
        kept_comments: comments to put above a statement, of code in it that goes.
        gone: statements that go.
        touched: nodes at or below which something changes.
    """

    def __init__(self) -> None:
        self.changes: dict[cst.CSTNode, list[Change]] = {}
        self.before: dict[cst.CSTNode, list[str]] = {}
        self.above: dict[cst.CSTNode, list[str]] = {}
        self.after: dict[cst.CSTNode, list[str]] = {}
        self.expanded: dict[cst.CSTNode, dict[str, Text]] = {}
        self.kept_comments: dict[cst.CSTNode, list[str]] = {}
        self.gone: set[cst.CSTNode] = set()
        self.touched: set[cst.CSTNode] = set()
        self.done: set[tuple[cst.CSTNode, str]] = set()

    def __bool__(self) -> bool:
        return bool(self.changes or self.before or self.above or self.after or self.expanded or self.gone)

    @property
    def lengths(self) -> Lengths:
        """The number of changes, and of lines beside it, that are claimed for each node."""
        held: tuple[Mapping[cst.CSTNode, Sized], ...] = (
            self.changes,
            self.before,
            self.above,
            self.after,
            self.kept_comments,
            self.expanded,
        )
        found = {(number, node): len(claimed) for number, of in enumerate(held) for node, claimed in of.items()}
        return found | {(len(held), node): 1 for node in self.gone}

    def drop_repeated(self, known: Lengths) -> None:
        """Take back what was claimed since then and does once more what had been claimed before."""
        for number, lines in enumerate((self.before, self.above, self.after, self.kept_comments), 1):
            for node, texts in lines.items():
                old = texts[: known.get((number, node), 0)]
                texts[len(old) :] = [text for text in texts[len(old) :] if text not in old]
        for node, changes in self.changes.items():
            count = known.get((0, node), 0)
            old_result, new_result = _result(node, changes[:count]), _result(node, changes[count:])
            if count and old_result is not None and old_result == new_result:
                del changes[count:]

    def changed(self, known: Lengths) -> tuple[set[cst.CSTNode], set[cst.CSTNode]]:
        """Return the nodes that had changed, or gone, by then, and those that have been changed since."""
        inserted = (1, 2, 3, 4)
        before = {node for number, node in known if number not in inserted}
        now = self.lengths
        return before, {place[1] for place in now if place[0] not in inserted and now[place] != known.get(place, 0)}

    def checkpoint(self) -> Callable[[], None]:
        """Return a function that takes back everything claimed from now on."""
        lists = [
            (held, {node: list(found) for node, found in held.items()})
            for held in (self.changes, self.before, self.above, self.after, self.kept_comments)
        ]
        sets: list[tuple[set[Any], set[Any]]] = [(held, set(held)) for held in (self.gone, self.touched, self.done)]
        expanded = {line: dict(marks) for line, marks in self.expanded.items()}

        def undo() -> None:
            held: Any
            saved: Any
            for held, saved in lists:
                held.clear()
                held.update({node: list(found) for node, found in saved.items()})
            for held, saved in sets:
                held.intersection_update(saved)
            for line in self.expanded.keys() - expanded.keys():
                del self.expanded[line]
            for line, marks in expanded.items():  # changes refer to these dicts
                self.expanded[line].clear()
                self.expanded[line].update(marks)

        return undo


def _result(node: cst.CSTNode, changes: Iterable[Change]) -> str | None:
    """Return the code that changes make of a node as it was parsed; None where that is not one node."""
    changed: Any = node
    for change in changes:
        changed = change(changed)
        if not isinstance(changed, cst.CSTNode):
            return None
    return code(changed)
