"""Sums over an epoch that a rank makes of its share: in a loop before, or in a function that returns or keeps them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.ranks.data.epochs.sums_of_attributes import SumsOfAttributes
from ds_migrate.plain.recognition.batches.loaders import loaders_of
from ds_migrate.syntax.nodes import called_name, code, dotted, number, receiver, targets, walk, without_index
from ds_migrate.syntax.source import SourceFile


class Addition(NamedTuple):
    """A line that adds a value to a sum, or to an item of it: ``hits[label] += 1``, or a call: ``counts.update(y)``."""

    file: SourceFile
    line: cst.Assign | cst.AugAssign | cst.Call
    target: cst.BaseExpression
    value: cst.BaseExpression


@dataclass(frozen=True)
class EpochSum:
    """A sum over the batches of a share.

    Attributes:
        loop: the one over the batches, in ``file``.
        added: the lines that add to it.
        is_here: whether the sum is used in the function of the loop.
    """

    loop: cst.For
    file: SourceFile
    added: Sequence[Addition]
    is_here: bool = True

    @property
    def is_counter(self) -> bool:
        """Return whether it adds fixed numbers alone, as to a number of steps."""
        return all(number(addition.value) is not None for addition in self.added)


class EpochSums:
    """The sums of a program over batches of which each rank has a share.

    Args:
        makers: the calls that make the loaders of shares, by identity.
    """

    def __init__(self, makers: Collection[int], flow: Flow) -> None:
        self._makers = makers
        self._flow = flow
        self._assigned: dict[SourceFile, dict[str, list[tuple[cst.Assign, int | None]]]] = {}
        self._attributes = SumsOfAttributes(self._are_shares, flow)

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
            found = (*_additions(loop, file), *self._counted(loop, file))
            added = [one for one in found if dotted(without_index(one.target)) in names]
            if added and self._are_shares(loop.iter, file):
                yield EpochSum(loop, file, added)

    def _counted(self, loop: cst.For, file: SourceFile) -> Iterator[Addition]:
        """Yield what a loop counts by a method: ``counts.update(labels)`` of a ``Counter``."""
        for call in file.nodes(cst.Call, below=loop.body):
            total = receiver(call, "update")
            if isinstance(total, (cst.Name, cst.Attribute)) and call.args:
                made = self._flow.scopes(file).assigned(total)
                if made and all(isinstance(one, cst.Call) and called_name(one) == "Counter" for one in made):
                    yield Addition(file, call, total, call.args[0].value)

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
                    if is_same and isinstance(line.value, cst.Call) and not _is_set_between(line, part, file):
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
        """Yield the sums that other functions keep in the attributes of an expression."""
        for part in walk(total):
            for at, loop, (home, line) in self._attributes.sums(part, file) if isinstance(part, cst.Attribute) else ():
                yield EpochSum(loop, at, [Addition(home, line, line.target, line.value)], is_here=False)

    def _returned_by(self, call: cst.Call, index: int | None, file: SourceFile) -> Iterator[EpochSum]:
        given = [arg.value for arg in call.args if loaders_of(arg.value, file, self._flow)]
        if given and not any(self._are_shares(value, file) for value in given):
            return  # another loader than that which trains
        for value in of_kind(self._flow.values(call.func, file), Kind.FUNCTION, Kind.METHOD):
            at, function = self._flow.file(value), self._flow.node(value)
            assert isinstance(function, cst.FunctionDef)
            for returned in at.returned(function):
                parts = dict(_parts(returned)) if returned is not None else {}
                name = dotted(parts.get(index))
                for one in self._sums({name}, at, function) if name is not None else ():
                    if not is_set_behind(name or "", one, function):
                        yield EpochSum(one.loop, at, one.added, is_here=False)


def _additions(loop: cst.For, file: SourceFile) -> Iterator[Addition]:
    """Yield what a loop adds by an operator: ``total += x`` and ``total = total + x``."""
    for change in file.nodes(cst.AugAssign, below=loop.body):
        yield Addition(file, change, change.target, change.value)
    for line in file.nodes(cst.Assign, below=loop.body):
        target, made = line.targets[0].target, line.value
        if isinstance(made, cst.BinaryOperation) and isinstance(made.operator, cst.Add):
            if _reads(made.left, target):
                yield Addition(file, line, target, made.right)
            elif _reads(made.right, target):
                yield Addition(file, line, target, made.left)


def _reads(node: cst.BaseExpression, target: cst.BaseExpression) -> bool:
    """Return whether an expression is what a target holds so far, as ``seen.get(label, 0)`` for ``seen[label]``."""
    owner = receiver(node, "get") if isinstance(node, cst.Call) else None
    return code(node) == code(target) or (owner is not None and code(owner) == code(without_index(target)))


def _parts(node: cst.BaseExpression) -> Iterator[tuple[int | None, cst.BaseExpression]]:
    """Yield an expression, or the elements of a tuple with their indexes."""
    if isinstance(node, (cst.Tuple, cst.List)):
        yield from ((index, element.value) for index, element in enumerate(node.elements))
    else:
        yield None, node


def _is_set_between(line: cst.Assign, name: cst.Name, file: SourceFile) -> bool:
    """Return whether the block that gives a name what a call returns makes something else of it before it is used."""
    block = file.parent(file.statement(line))
    around = {id(outer) for outer in file.ancestors(name)}
    return any(
        file.position(line) < file.position(other) < file.position(name)
        and id(other) not in around
        and file.parent(file.statement(other)) is block
        and any(dotted(target) == name.value for target in targets(other))
        for other in file.nodes(cst.Assign, cst.AugAssign, below=block)
    )


def is_set_behind(name: str, one: EpochSum, scope: cst.FunctionDef | cst.Module) -> bool:
    """Return whether a function or module makes something else of a sum behind the loop, as an average."""
    lines = one.file.nodes(cst.Assign, cst.AugAssign, below=scope)
    return any(
        one.file.position(line) > one.file.position(one.loop)
        and not any(outer is one.loop for outer in one.file.ancestors(line))
        and any(dotted(target) == name for target in targets(line))
        for line in lines
    )
