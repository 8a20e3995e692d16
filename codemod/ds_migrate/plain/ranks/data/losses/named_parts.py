"""Expressions that the names and attributes in a loss stand for: what they are set to, are given, or collect."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import libcst as cst

from ds_migrate.plain.dataflow.branches.set_names import latest_value
from ds_migrate.plain.dataflow.containers.iteration import loops_of, taken_from
from ds_migrate.plain.dataflow.containers.mappings import literal_index
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.scopes import names_in
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.ranks.data.losses.returned_values import index_in
from ds_migrate.syntax.nodes import dotted, set_values, without_index
from ds_migrate.syntax.source import SourceFile

_SCALES = (cst.MultiplyAssign, cst.DivideAssign)


class SumPart(NamedTuple):
    """An expression that a loss may be a sum of.

    Attributes:
        item: which item of the tuple that it returns; None for all of it.
        is_divided: whether it is divided by the number of samples of a batch, so that it may be a sum over them.
    """

    file: SourceFile
    node: cst.BaseExpression
    item: int | None = None
    is_divided: bool = False


class NamedParts:
    """The expressions that the names and attributes of a program stand for.

    Args:
        flow: of the program.
        callers: of its functions.
    """

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._entered: dict[int, list[tuple[SourceFile, cst.Call]]] = {}  # by function: the calls that led into it

    def enter(self, call: cst.Call, file: SourceFile, returned: SumPart) -> None:
        """Know a call by which a part is what a function returns: it gives the function's parameters."""
        function = returned.file.function(returned.node)
        if function is not None:
            self._entered.setdefault(id(function), []).append((file, call))

    def of(self, node: cst.Name | cst.Attribute, part: SumPart, key: str | None = None) -> Iterator[SumPart]:
        """Yield what a name or attribute is set to, is given by calls or loops, and holds of a key."""
        yield from self._set(node, part, key)
        if isinstance(node, cst.Name):
            yield from self._given(node, part)
        else:
            yield from self._of_object(node, part)

    def _set(self, node: cst.Name | cst.Attribute, part: SumPart, key: str | None) -> Iterator[SumPart]:
        """Yield what a name is set to, or gets by ``+=``, by ``append()``, or as an item of a key."""
        file, scopes, name = part.file, self._flow.scopes(part.file), dotted(node)
        latest = latest_value(node, file, scopes) if isinstance(node, cst.Name) else None
        if latest is not None:
            yield part._replace(node=latest)
        for line in scopes.nodes(node, cst.Assign, cst.AnnAssign):
            for target, value in set_values(line):
                if value is None and line.value is not None and dotted(target) == name:
                    yield part._replace(node=line.value, item=index_in(line, str(name)))
                elif value is not None and dotted(target) == name and latest is None:
                    yield part._replace(node=value)
                elif value is not None and isinstance(target, cst.Subscript) and dotted(target.value) == name:
                    yield from [part._replace(node=value)] if key in (None, literal_index(target)) else ()
        for line in scopes.nodes(node, cst.AugAssign):
            if dotted(without_index(line.target)) == name and not isinstance(line.operator, _SCALES):
                yield part._replace(node=line.value, item=None)
        for attribute in file.attributes_by_name.get("append", ()):
            call = file.parent(attribute)
            is_same = dotted(attribute.value) == name and file.function(attribute) is file.function(node)
            if is_same and isinstance(call, cst.Call) and call.args:
                yield part._replace(node=call.args[0].value, item=None)

    def _given(self, node: cst.Name, part: SumPart) -> Iterator[SumPart]:
        """Yield what a parameter is given, and the container whose items a loop goes through."""
        for given, home in self._flow.callers.given(node, part.file):
            yield part._replace(file=home, node=given)
        function = part.file.function(node)
        for home, call in self._entered.get(id(function), ()):
            arg = self._flow.given(call, function, node.value, home) if function is not None else None
            if arg is not None and not arg.star:
                yield part._replace(file=home, node=arg.value)
        for loop in loops_of(node, part.file):
            for target, over in taken_from(loop.target, loop.iter):
                if node.value in names_in(target):
                    yield part._replace(node=over, item=None)

    def _of_object(self, node: cst.Attribute, part: SumPart) -> Iterator[SumPart]:
        """Yield what the methods of an object set its attribute to, or a call that makes it: a field of a record."""
        owners = of_kind(self._flow.values(node.value, part.file), Kind.INSTANCE, Kind.OBJECT, Kind.MODULE)
        for value in self._flow.in_order(owners):
            made = self._flow.node_of(value.key if value.kind is Kind.INSTANCE else value.of)
            home, below = made if made is not None else (part.file, node)
            for line in home.nodes(cst.Assign, cst.AnnAssign, below=below):
                pairs = set_values(line)
                yield from (
                    SumPart(home, v) for t, v in pairs if v is not None and dotted(t) == f"self.{node.attr.value}"
                )
            for other in self._flow.files.values() if value.kind is Kind.INSTANCE else ():
                for call in other.nodes(cst.Call):
                    fields = self._flow.set_fields(call, other)
                    if fields and value in self._flow.values(call, other):
                        yield from (SumPart(other, given) for name, given in fields if name == node.attr.value)
