"""The values that statements of a program give to its variables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import libcst as cst

from ds_migrate.plain.dataflow.arguments import Arguments
from ds_migrate.plain.dataflow.expressions import Expressions, appended, item_name
from ds_migrate.plain.dataflow.iteration import taken_from
from ds_migrate.plain.dataflow.scopes import Scopes
from ds_migrate.plain.dataflow.values import Kind, Values, Variable, attribute_owner, of_kind
from ds_migrate.syntax.source import SourceFile

_Given = Iterator[tuple[Variable, Values]]


class Statements:
    """Assignments, loops, results and arguments as variables that are given values."""

    def __init__(self, scopes: Mapping[int, Scopes], expressions: Expressions, arguments: Arguments) -> None:
        self._scopes = scopes
        self._expressions = expressions
        self._arguments = arguments

    def of(self, file: SourceFile) -> _Given:
        """Yield the variables to which a file gives values, with these."""
        values = self._expressions.values
        for node in file.nodes(cst.Assign):
            given = values(node.value, file)
            for target in node.targets:
                yield from self._into(target.target, given, file)
        for node in file.nodes(cst.AnnAssign, cst.NamedExpr):
            if node.value is not None:
                yield from self._into(node.target, values(node.value, file), file)
        for node in file.nodes(cst.For, cst.CompFor):
            for target, container in taken_from(node.target, node.iter):
                items = {v for value in values(container, file) for v in self._expressions.items_of(value)}
                yield from self._into(target, frozenset(items), file)
        for node in file.nodes(cst.WithItem):
            if node.asname is not None:
                yield from self._into(node.asname.name, values(node.item, file), file)
        for node in file.nodes(cst.Return):
            function = file.function(node)
            if function is not None and node.value is not None:
                yield (id(function), "return"), values(node.value, file)
        for node in file.nodes(cst.Tuple, cst.List, cst.Dict):
            yield from self._items(node, file)
        for node in file.nodes(cst.DictComp):
            yield (id(node), "[]"), values(node.value, file)
        for node in file.nodes(cst.ListComp):
            yield (id(node), "[]"), values(node.elt, file)
        for call in file.nodes(cst.Call):
            for variable, expression in self._arguments.passed(call, file):
                yield variable, values(expression, file)
            if isinstance(call.func, cst.Attribute) and call.func.attr.value == "append" and len(call.args) == 1:
                for base in of_kind(values(call.func.value, file), Kind.SEQUENCE):
                    yield (base.key, appended(call)), values(call.args[0].value, file)

    def _into(self, target: cst.CSTNode, values: Values, file: SourceFile) -> _Given:
        if isinstance(target, cst.Name):
            yield self._bound(target, file), values
        elif isinstance(target, cst.Attribute):
            for base in self._expressions.values(target.value, file):
                owner = attribute_owner(base)
                if owner is not None:
                    yield self._expressions.classes.attribute(owner, target.attr.value), values
        elif isinstance(target, (cst.Tuple, cst.List)):
            sequences = of_kind(values, Kind.SEQUENCE)
            for index, element in enumerate(target.elements):
                held = {v for s in sequences for v in self._expressions.item_of(s, f"[{index}]")}
                yield from self._into(element.value, frozenset(held), file)
        elif isinstance(target, cst.Subscript) and len(target.slice) == 1:
            index_node = target.slice[0].slice
            if isinstance(index_node, cst.Index) and isinstance(index_node.value, (cst.SimpleString, cst.Integer)):
                containers = self._expressions.values(target.value, file)
                for base in of_kind(containers, Kind.MAPPING, Kind.SEQUENCE):
                    yield (base.key, item_name(index_node.value)), values

    def _bound(self, target: cst.Name, file: SourceFile) -> Variable:
        """Return the variable that a name is where it is bound: in the body of a class, an attribute of that."""
        around = next((a for a in file.ancestors(target) if isinstance(a, cst.ClassDef)), None)
        if around is not None and file.function(target) is None:
            return self._expressions.classes.attribute(id(around), target.value)
        return self._scopes[id(file)].variable(target.value, target)

    def _items(self, node: cst.Tuple | cst.List | cst.Dict, file: SourceFile) -> _Given:
        if isinstance(node, cst.Dict):
            for pair in node.elements:
                if isinstance(pair, cst.DictElement) and isinstance(pair.key, cst.SimpleString):
                    yield (id(node), item_name(pair.key)), self._expressions.values(pair.value, file)
            return
        for index, element in enumerate(node.elements):
            if isinstance(element, cst.Element):
                yield (id(node), f"[{index}]"), self._expressions.values(element.value, file)
