"""The values that statements of a program give to its variables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import libcst as cst

from ds_migrate.plain.dataflow.attributes_by_name import attributes_set_by
from ds_migrate.plain.dataflow.calls.arguments import Arguments
from ds_migrate.plain.dataflow.containers.container_items import appended, item_name
from ds_migrate.plain.dataflow.containers.iteration import taken_from
from ds_migrate.plain.dataflow.containers.mappings import keyword_items
from ds_migrate.plain.dataflow.containers.records import fields_set_by
from ds_migrate.plain.dataflow.expressions import Expressions
from ds_migrate.plain.dataflow.scopes import Scopes
from ds_migrate.plain.dataflow.values import NOTHING, Kind, Value, Values, Variable, attribute_owner, of_kind
from ds_migrate.syntax.nodes import called_name, receiver
from ds_migrate.syntax.source import SourceFile

_Given = Iterator[tuple[Variable, Values]]
_KEPT_BY_NAME = (
    Kind.LOADER,
    Kind.SCHEDULE,
    Kind.CLASS,
    Kind.FUNCTION,
    Kind.INSTANCE,
    Kind.MODULE,
    Kind.OPTIMIZER,
)  # in an item whose key is a variable
_PUTS = {"extend": 1, "update": 1, "insert": 2, "setdefault": 2}  # number of arguments


class Statements:
    """Assignments, loops, results and arguments as variables that are given values."""

    def __init__(self, scopes: Mapping[int, Scopes], expressions: Expressions, arguments: Arguments) -> None:
        self._scopes = scopes
        self._expressions = expressions
        self._arguments = arguments

    def of(self, file: SourceFile) -> Iterator[Callable[[], _Given]]:
        """Yield what yields the variables to which a node gives values, with these, for each node of a file."""
        for give, *kinds in (
            (self._assigned, cst.Assign),
            (self._annotated, cst.AnnAssign, cst.NamedExpr),
            (self._added, cst.AugAssign),
            (self._looped, cst.For, cst.CompFor),
            (self._entered, cst.WithItem),
            (self._returned, cst.Return),
            (self._items, cst.Tuple, cst.List, cst.Dict),
            (self._computed, cst.DictComp),
            (self._computed, cst.ListComp, cst.GeneratorExp),
            (self._passed, cst.Call),
            (self._starred, cst.FunctionDef),
            (self._decorated, cst.ClassDef, cst.FunctionDef),
        ):
            for node in file.nodes(*kinds):
                yield partial(give, node, file)

    def _assigned(self, node: cst.Assign, file: SourceFile) -> _Given:
        given = self._expressions.values(node.value, file)
        for target in node.targets:
            yield from self._into(_target_of_options(target.target, node.value) or target.target, given, file)

    def _annotated(self, node: cst.AnnAssign | cst.NamedExpr, file: SourceFile) -> _Given:
        if node.value is not None:
            yield from self._into(node.target, self._expressions.values(node.value, file), file)

    def _looped(self, node: cst.For | cst.CompFor, file: SourceFile) -> _Given:
        for target, container in taken_from(node.target, node.iter):
            values = self._expressions.values(container, file)
            yield from self._into(target, self._expressions.items.all_in(values), file)

    def _entered(self, node: cst.WithItem, file: SourceFile) -> _Given:
        if node.asname is not None:
            yield from self._into(node.asname.name, self._expressions.values(node.item, file), file)

    def _returned(self, node: cst.Return, file: SourceFile) -> _Given:
        function = file.function(node)
        if function is not None and node.value is not None:
            yield (id(function), "return"), self._expressions.values(node.value, file)

    def _computed(self, node: cst.DictComp | cst.ListComp | cst.GeneratorExp, file: SourceFile) -> _Given:
        item = node.value if isinstance(node, cst.DictComp) else node.elt
        yield (id(node), "[]"), self._expressions.values(item, file)

    def _passed(self, call: cst.Call, file: SourceFile) -> _Given:
        values = self._expressions.values
        for variable, expression, home in self._arguments.all_of(call, file):
            yield variable, values(expression, home)
        for variable, expression in fields_set_by(call, file, self._expressions):
            yield variable, values(expression, file)
        yield from attributes_set_by(call, file, self._expressions)
        yield from self._arguments.unpacked(call, file)
        for key, item in keyword_items(call):
            yield (id(call), f"[{key!r}]"), values(item, file)
        for variable, owner in self._arguments.class_receivers(call, file):
            yield variable, frozenset({owner})
        container = receiver(call, "append", *_PUTS)
        if container is not None and _PUTS.get(method := called_name(call), 1) == len(call.args):
            given = values(call.args[-1].value, file)
            if method == "append":
                bases = of_kind(values(container, file), Kind.SEQUENCE)
                yield from (((base.key, appended(call)), given) for base in bases)
            else:  # by an index or key that is not known
                given = self._expressions.items.all_in(given) if method in ("extend", "update") else given
                yield from self._kept(given, container, call, file)

    def _added(self, node: cst.AugAssign, file: SourceFile) -> _Given:
        given = self._expressions.values(node.value, file)
        yield from self._kept(self._expressions.items.all_in(given), node.target, node, file)

    def _kept(self, given: Values, container: cst.BaseExpression, node: cst.CSTNode, file: SourceFile) -> _Given:
        if kept := of_kind(given, *_KEPT_BY_NAME):
            for base in of_kind(self._expressions.values(container, file), Kind.MAPPING, Kind.SEQUENCE):
                yield (base.key, appended(node)), kept

    def _starred(self, node: cst.FunctionDef, file: SourceFile) -> _Given:
        """Yield ``*args`` and ``**kwargs`` of a function as containers."""
        for param, kind in ((node.params.star_arg, Kind.SEQUENCE), (node.params.star_kwarg, Kind.MAPPING)):
            if isinstance(param, cst.Param):
                yield (id(node), param.name.value), frozenset({self._expressions.variables.make(kind, param, file)})

    def _decorated(self, node: cst.ClassDef | cst.FunctionDef, file: SourceFile) -> _Given:
        """Yield the parameters of decorators that get a class or function."""
        if any(isinstance(outer, cst.ClassDef) for outer in file.ancestors(node)):
            return
        kind = Kind.CLASS if isinstance(node, cst.ClassDef) else Kind.FUNCTION
        for decorator in node.decorators:
            values = self._expressions.values(decorator.decorator, file)
            for parameter in self._arguments.first_parameters(values):
                yield parameter, frozenset({Value(kind, id(node))})

    def _into(self, target: cst.CSTNode, values: Values, file: SourceFile) -> _Given:
        if not values:
            return
        if isinstance(target, cst.Name):
            yield self._bound(target, file), values
        elif isinstance(target, cst.Attribute):
            for base in self._expressions.values(target.value, file):
                owner = attribute_owner(base)
                if base.kind is Kind.MAPPING and base.name:
                    yield (base.key, item_name(target.attr.value)), values
                if owner is not None:
                    yield self._expressions.classes.attribute(owner, target.attr.value), values
        elif isinstance(target, (cst.Tuple, cst.List)):
            sequences = of_kind(values, Kind.SEQUENCE)
            for index, element in enumerate(target.elements):
                held = [self._expressions.items.unpacked(each, f"[{index}]") for each in sequences]
                yield from self._into(element.value, NOTHING.union(*held), file)
        elif isinstance(target, cst.Subscript) and len(target.slice) == 1:
            part = target.slice[0].slice
            containers = of_kind(self._expressions.values(target.value, file), Kind.MAPPING, Kind.SEQUENCE)
            if isinstance(part, cst.Index) and isinstance(part.value, (cst.SimpleString, cst.Integer)):
                yield from (((base.key, item_name(part.value.evaluated_value)), values) for base in containers)
            else:  # of each task, or registered
                yield from self._kept(values, target.value, target, file)

    def _bound(self, target: cst.Name, file: SourceFile) -> Variable:
        """Return the variable that a name is where it is bound: in the body of a class, an attribute of that."""
        around = file.class_around(target)
        if around is not None and file.function(target) is None:
            return self._expressions.classes.attribute(id(around), target.value)
        return self._scopes[id(file)].variable(target.value, target)

    def _items(self, node: cst.Tuple | cst.List | cst.Dict, file: SourceFile) -> _Given:
        if isinstance(node, cst.Dict):
            for pair in node.elements:
                if isinstance(pair, cst.DictElement) and isinstance(pair.key, cst.SimpleString):
                    yield (id(node), item_name(pair.key.evaluated_value)), self._expressions.values(pair.value, file)
                elif isinstance(pair, cst.DictElement):  # as of {Trainer.name(): Trainer}
                    chosen = of_kind(self._expressions.values(pair.value, file), *_KEPT_BY_NAME)
                    yield (id(node), "[]"), chosen
            return
        for index, element in enumerate(node.elements):
            if isinstance(element, cst.Element):
                yield (id(node), f"[{index}]"), self._expressions.values(element.value, file)
            else:
                values = self._expressions.values(element.value, file)
                yield (id(node), "[]"), self._expressions.items.all_in(values)


def _target_of_options(target: cst.BaseExpression, value: cst.BaseExpression) -> cst.BaseExpression | None:
    """Return what gets the options of ``args, others = parser.parse_known_args()``, or of a parser of optparse."""
    if not isinstance(target, (cst.Tuple, cst.List)) or not isinstance(value, cst.Call):
        return None
    return target.elements[0].value if called_name(value) in ("parse_args", "parse_known_args") else None
