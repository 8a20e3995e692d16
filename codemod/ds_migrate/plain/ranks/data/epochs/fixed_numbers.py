"""Numbers that do not depend on how the data is divided: a constant, an argument, the size of a mask."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.scopes import names_in
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.recognition.batches.loaders import loaders_of
from ds_migrate.syntax.nodes import children, dotted, number, targets, walk
from ds_migrate.syntax.source import SourceFile

_DEPTH = 5
_UNITS = frozenset({60, 100, 1000, 1024, 3600, 10**6, 2**20, 10**9, 2**30})  # of times, shares and bytes
_FEW = 10  # losses or folds, of which a mean is made
_OF_RANKS = ("world_size", "get_rank", "num_replicas", "num_gpus", "n_gpu", "device_count")
_Leaf = tuple[cst.BaseExpression, SourceFile]


class FixedNumbers:
    """The numbers of a program that are the same on any number of ranks.

    Args:
        data_sets: returns the expressions of a file that are data sets.
    """

    def __init__(self, flow: Flow, data_sets: Callable[[SourceFile], set[str]]) -> None:
        self._flow = flow
        self._data_sets = data_sets

    def counts(self, node: cst.BaseExpression, loop: cst.For | None, file: SourceFile) -> bool:
        """Return whether a number counts something, and depends neither on a loop nor on the length of a loader."""
        leaves = list(self._leaves(node, file, _DEPTH, set()))
        changed = _changed_in(loop, file) if loop is not None else set()
        written = {id(part) for part in walk(node)}
        return any(_is_count(leaf, id(leaf) in written) for leaf, _ in leaves) and not any(
            self._is_of_share(leaf, other, changed if other is file else set()) for leaf, other in leaves
        )

    def _leaves(self, node: cst.BaseExpression, file: SourceFile, depth: int, seen: set[int]) -> Iterator[_Leaf]:
        """Yield the numbers, names and calls that an expression is made of, also through names and arguments."""
        if id(node) in seen:
            return
        seen.add(id(node))
        if number(node) is not None or (isinstance(node, cst.Call) and dotted(node.func) == "len"):
            yield node, file
        elif (name := dotted(node)) is not None and isinstance(node, (cst.Name, cst.Attribute)):
            values = list(self._flow.callers.sources(node, file)) if depth else []
            if not values or _is_counted_up(name, file):
                yield node, file
            for value, other in values:
                yield from self._leaves(value, other, depth - 1, seen)
        else:
            yield from ((node, file) for _ in range(isinstance(node, cst.Call)))
            for child in children(node):
                for part in children(child) if isinstance(child, cst.Arg) else [child]:
                    if isinstance(part, cst.BaseExpression):
                        yield from self._leaves(part, file, depth, seen)

    def _is_of_share(self, leaf: cst.BaseExpression, file: SourceFile, changed: set[str]) -> bool:
        """Return whether a number is made in a loop, of a loader, or of the number of ranks."""
        if isinstance(leaf, cst.Call):
            called = dotted(leaf.func) or ""
            is_length = called == "len" and dotted(leaf.args[0].value) not in self._data_sets(file)
            of_program = of_kind(self._flow.values(leaf.func, file), Kind.FUNCTION, Kind.METHOD)
            return is_length or called.endswith(_OF_RANKS) or bool(of_program)
        name = dotted(leaf)
        if name is None:
            return False
        is_changed = name in changed or any(name.startswith(f"{other}.") for other in changed)
        is_bound = any(name in names_in(loop.target) for loop in file.nodes(cst.For, cst.CompFor))
        is_bound |= any(name in names_in(t) for line in file.nodes(cst.Assign) for t in _tuples(line))
        is_own = is_changed or is_bound or _is_counted_up(name, file) or name.endswith(_OF_RANKS)
        return is_own or bool(loaders_of(leaf, file, self._flow))


def _tuples(line: cst.Assign) -> list[cst.BaseExpression]:
    """Return the targets among which a line divides a value that is not written as a tuple."""
    is_open = not isinstance(line.value, (cst.Tuple, cst.List))
    return [target for target in targets(line) if is_open and isinstance(target, (cst.Tuple, cst.List))]


def _is_count(leaf: cst.BaseExpression, is_written: bool) -> bool:
    """Return whether a number may count samples or batches: not that of a few things, and no unit as a literal.

    Args:
        is_written: whether the division itself has the number, which else has a name: ``ntrain = 1000``.
    """
    value = number(leaf)
    if value is not None:
        return value > _FEW and not (is_written and value in _UNITS)
    return not isinstance(leaf, cst.Call) or dotted(leaf.func) == "len"


def _is_counted_up(name: str, file: SourceFile) -> bool:
    """Return whether something is added to a name, or to an attribute of that name of whatever object."""
    _, dot, end = name.rpartition(".")
    added = (dotted(line.target) or "" for line in file.nodes(cst.AugAssign))
    return any(other == name or (dot and other.endswith(f".{end}")) for other in added)


def _changed_in(loop: cst.For, file: SourceFile) -> set[str]:
    """Return what a loop binds, and the objects whose methods it calls."""
    lines = file.nodes(cst.Assign, cst.AnnAssign, cst.AugAssign, below=loop.body)
    bound = {name for line in lines for target in targets(line) for name in (dotted(target), *names_in(target))}
    bound |= {name for outer in (loop, *file.nodes(cst.For, below=loop.body)) for name in names_in(outer.target)}
    calls = file.nodes(cst.Call, below=loop.body)
    bound |= {dotted(call.func.value) for call in calls if isinstance(call.func, cst.Attribute)}
    return {name for name in bound if name is not None}
