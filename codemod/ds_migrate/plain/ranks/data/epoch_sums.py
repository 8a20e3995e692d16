"""Sums over an epoch that a rank makes of its share: in a loop before, or in a function that returns or keeps them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.recognition.batches.loaders import loaders_of
from ds_migrate.syntax.nodes import dotted, number, targets, walk
from ds_migrate.syntax.source import SourceFile


@dataclass(frozen=True)
class EpochSum:
    """A sum over the batches of a share.

    Attributes:
        loop: the one over the batches, in ``file``.
        is_counter: whether it adds fixed numbers alone, as to a number of steps.
        is_here: whether the sum is used in the function of the loop.
    """

    loop: cst.For
    file: SourceFile
    is_counter: bool
    is_here: bool = True


class EpochSums:
    """The sums of a program over batches of which each rank has a share.

    Args:
        makers: the calls that make the loaders of shares, by identity.
    """

    def __init__(self, makers: Collection[int], flow: Flow) -> None:
        self._makers = makers
        self._flow = flow
        self._assigned: dict[SourceFile, dict[str, list[tuple[cst.Assign, int | None]]]] = {}
        self._added = {
            line.target.attr.value
            for file in flow.files.values() for line in file.nodes(cst.AugAssign)
            if isinstance(line.target, cst.Attribute)
        }  # fmt: skip

    def find(self, node: cst.CSTNode, total: cst.BaseExpression, file: SourceFile) -> EpochSum | None:
        """Return the sum that an expression at a node has, if it has one."""
        around = {id(outer) for outer in file.ancestors(node)}
        names = {name for part in walk(total) if (name := dotted(part)) is not None}
        here = (e for e in self._sums(names, file, file.function(node)) if file.position(e.loop) < file.position(node))
        found = next((one for one in here if id(one.loop) not in around), None)
        others = (one for one in (*self._returned(total, file), *self._kept(total, file)) if id(one.loop) not in around)
        return found or next(others, None)

    def _sums(self, names: set[str], file: SourceFile, scope: cst.FunctionDef | None) -> Iterator[EpochSum]:
        """Yield the sums that a function adds up in one of these names."""
        for loop in file.nodes(cst.For, below=scope or file.module):
            if file.function(loop) is not scope:
                continue
            lines = file.nodes(cst.AugAssign, below=loop.body)
            added = [line for line in lines if any(dotted(target) in names for target in targets(line))]
            if added and self._are_shares(loop.iter, file):
                yield EpochSum(loop, file, all(number(line.value) is not None for line in added))

    def _are_shares(self, node: cst.BaseExpression, file: SourceFile) -> bool:
        return any(id(self._flow.node(value)) in self._makers for value in loaders_of(node, file, self._flow))

    def _returned(self, total: cst.BaseExpression, file: SourceFile) -> Iterator[EpochSum]:
        """Yield the sums that calls in an expression, or those that its names are assigned, return."""
        attributes = {id(part.attr) for part in walk(total) if isinstance(part, cst.Attribute)}
        for part in walk(total):
            if isinstance(part, cst.Call):
                yield from self._returned_by(part, None, file)
            elif isinstance(part, cst.Name) and id(part) not in attributes:
                scopes = self._flow.scopes(file)
                for line, index in self._results(file).get(part.value, ()):
                    is_same = scopes.owner(part.value, line) is scopes.owner(part.value, part)
                    if is_same and isinstance(line.value, cst.Call):
                        yield from self._returned_by(line.value, index, file)

    def _results(self, file: SourceFile) -> dict[str, list[tuple[cst.Assign, int | None]]]:
        """Return the lines that give each name what a call returns, with its index where that is a tuple."""
        if file not in self._assigned:
            found = self._assigned[file] = {}
            for line in file.nodes(cst.Assign):
                for index, target in _parts(line.targets[0].target) if isinstance(line.value, cst.Call) else ():
                    if isinstance(target, cst.Name):
                        found.setdefault(target.value, []).append((line, index))
        return self._assigned[file]

    def _kept(self, total: cst.BaseExpression, file: SourceFile) -> Iterator[EpochSum]:
        """Yield the sums that other functions add up in the attributes of an expression, and nothing else changes."""
        for part in walk(total):
            if not isinstance(part, cst.Attribute) or part.attr.value not in self._added:
                continue
            variable = self._flow.variable(part, file)
            if variable is None:
                continue
            uses = [
                (at, use) for at in self._flow.files.values() for use in at.attributes_by_name.get(part.attr.value, ())
                if self._flow.variable(use, at) == variable
            ]  # fmt: skip
            lines = [(at, line) for at, use in uses if (line := _setting(use, at)) is not None]
            if any(_makes_other(line) for _, line in lines):
                continue
            for at, line in lines:
                loops = [a for a in at.ancestors(line) if isinstance(a, cst.For) and self._are_shares(a.iter, at)]
                if loops and isinstance(line, cst.AugAssign):
                    yield EpochSum(loops[0], at, number(line.value) is not None, is_here=False)

    def _returned_by(self, call: cst.Call, index: int | None, file: SourceFile) -> Iterator[EpochSum]:
        given = [arg.value for arg in call.args if loaders_of(arg.value, file, self._flow)]
        if given and not any(self._are_shares(value, file) for value in given):
            return  # another loader than that which trains
        for value in of_kind(self._flow.values(call.func, file), Kind.FUNCTION, Kind.METHOD):
            at, function = self._flow.file(value), self._flow.node(value)
            assert isinstance(function, cst.FunctionDef)
            for line in at.nodes(cst.Return, below=function.body):
                parts = dict(_parts(line.value)) if line.value is not None else {}
                name = dotted(parts.get(index))
                for one in self._sums({name}, at, function) if name is not None else ():
                    if not _is_divided(name or "", one, function):
                        yield EpochSum(one.loop, at, one.is_counter, is_here=False)


def _parts(node: cst.BaseExpression) -> Iterator[tuple[int | None, cst.BaseExpression]]:
    """Yield an expression, or the elements of a tuple with their indexes."""
    if isinstance(node, (cst.Tuple, cst.List)):
        yield from ((index, element.value) for index, element in enumerate(node.elements))
    else:
        yield None, node


def _setting(use: cst.Attribute, file: SourceFile) -> cst.Assign | cst.AugAssign | None:
    """Return the line that sets an attribute, where a use of it is that."""
    line = next((a for a in file.ancestors(use) if isinstance(a, (cst.Assign, cst.AugAssign))), None)
    return line if line is not None and any(target is use for target in targets(line)) else None


def _makes_other(line: cst.Assign | cst.AugAssign) -> bool:
    """Return whether a line sets a sum to more than a number, or does not add to it."""
    is_added = isinstance(line, cst.AugAssign) and isinstance(line.operator, cst.AddAssign)
    return not is_added and number(line.value) is None


def _is_divided(name: str, one: EpochSum, function: cst.FunctionDef) -> bool:
    """Return whether a function makes something else of a sum behind the loop, as an average."""
    lines = one.file.nodes(cst.Assign, cst.AugAssign, below=function.body)
    return any(
        one.file.position(line) > one.file.position(one.loop)
        and not any(outer is one.loop for outer in one.file.ancestors(line))
        and any(dotted(target) == name for target in targets(line))
        for line in lines
    )
