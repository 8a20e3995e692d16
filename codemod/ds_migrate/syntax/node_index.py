"""Every node of a parsed file, after one walk: by kind, by place, by parent."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

import libcst as cst

from ds_migrate.syntax.nodes import children


class Index:
    """The nodes of a tree are numbered in source order, so that those below a node are a range of numbers.

    Nodes are known by their identity: comparing and hashing them runs Python code each time.
    """

    def __init__(self, root: cst.CSTNode) -> None:
        self._nodes: list[cst.CSTNode] = []
        self._parents: list[int] = []
        self._ends: list[int] = []
        self._numbers: dict[int, int] = {}
        self._of_kind: dict[type[cst.CSTNode], list[int]] = {}
        self._add(root, -1)

    def _add(self, node: cst.CSTNode, parent: int) -> None:
        number = len(self._nodes)
        self._nodes.append(node)
        self._parents.append(parent)
        self._ends.append(number)
        self._numbers[id(node)] = number
        self._of_kind.setdefault(type(node), []).append(number)
        for child in children(node):
            self._add(child, number)
        self._ends[number] = len(self._nodes)

    def below(self, node: cst.CSTNode, kinds: tuple[type[cst.CSTNode], ...]) -> list[cst.CSTNode]:
        """The node and all below it of exactly these kinds (of all when none is given), in source order."""
        first = self._numbers[id(node)]
        end = self._ends[first]
        if not kinds:
            return self._nodes[first:end]
        found: list[int] = []
        for kind in kinds:
            numbers = self._of_kind.get(kind, [])
            found += numbers[bisect_left(numbers, first) : bisect_left(numbers, end)]
        if len(kinds) > 1:
            found.sort()
        return [self._nodes[number] for number in found]

    def ancestors(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """From the node's parent up to the root; nothing for a node of another tree."""
        number = self._numbers.get(id(node), 0)
        while number:
            number = self._parents[number]
            yield self._nodes[number]
