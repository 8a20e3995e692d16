"""The nodes of a tree, indexed by one walk."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import TypeVar

import libcst as cst

from ds_migrate.syntax.nodes import children, dotted

_Node = TypeVar("_Node", bound=cst.CSTNode)


class NodeIndex:
    """Every node of a tree after one walk, by kind, by position and by parent.

    Nodes are numbered in source order, so that those below a node are a range of numbers.
    They are known by their identity: comparing and hashing them runs Python code each time.
    """

    def __init__(self, root: cst.CSTNode) -> None:
        self._nodes: list[cst.CSTNode] = []
        self._parents: list[int] = []
        self._ends: list[int] = []
        self._numbers: dict[int, int] = {}
        self._of_kind: dict[type[cst.CSTNode], list[int]] = {}
        self._spelled: dict[str, list[int]] | None = None
        self._hidden: list[range] = []
        self._add(root, -1)

    def hide(self, nodes: Iterable[cst.CSTNode]) -> None:
        """Leave the nodes and all below them out of every answer from now on, but for ``ancestors``."""
        numbers = [self._numbers[id(node)] for node in nodes]
        self._hidden += [range(number, self._ends[number]) for number in numbers]

    def _shown(self, numbers: Iterable[int]) -> list[cst.CSTNode]:
        nodes = self._nodes
        if not self._hidden:
            return [nodes[number] for number in numbers]
        return [nodes[number] for number in numbers if not any(number in hidden for hidden in self._hidden)]

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

    def number(self, node: cst.CSTNode) -> int:
        """Return the number of a node in source order; -1 for a node of another tree."""
        return self._numbers.get(id(node), -1)

    def below(self, node: cst.CSTNode, kinds: tuple[type[cst.CSTNode], ...]) -> list[cst.CSTNode]:
        """Return the node and all below it of exactly these kinds (of all when none is given), in source order."""
        first = self._numbers[id(node)]
        end = self._ends[first]
        if not kinds:
            return self._shown(range(first, end))
        found: list[int] = []
        for kind in kinds:
            numbers = self._of_kind.get(kind, [])
            found += numbers[bisect_left(numbers, first) : bisect_left(numbers, end)]
        if len(kinds) > 1:
            found.sort()
        return self._shown(found)

    def spelled(self, names: Iterable[str], node: cst.CSTNode) -> list[cst.CSTNode]:
        """Return the names and attributes at or below the node that are one of the dotted names, in source order."""
        if self._spelled is None:
            self._spelled = {}
            for number in sorted([*self._of_kind.get(cst.Name, ()), *self._of_kind.get(cst.Attribute, ())]):
                name = dotted(self._nodes[number])
                if name is not None:
                    self._spelled.setdefault(name, []).append(number)
        first = self._numbers[id(node)]
        end = self._ends[first]
        found: list[int] = []
        for name in names:
            numbers = self._spelled.get(name, [])
            found += numbers[bisect_left(numbers, first) : bisect_left(numbers, end)]
        return self._shown(sorted(found))

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        """Return the node directly above; None for the root and a node of another tree."""
        number = self._numbers.get(id(node), 0)
        return self._nodes[self._parents[number]] if number else None

    def around(self, node: cst.CSTNode, kind: type[_Node]) -> _Node | None:
        """Return the innermost node above of exactly this kind; None where there is none."""
        number = self._numbers.get(id(node), 0)
        while number:
            number = self._parents[number]
            outer = self._nodes[number]
            if type(outer) is kind:
                return outer
        return None

    def ancestors(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """Yield the node's parent and so on up to the root; nothing for a node of another tree."""
        number = self._numbers.get(id(node), 0)
        while number:
            number = self._parents[number]
            yield self._nodes[number]
