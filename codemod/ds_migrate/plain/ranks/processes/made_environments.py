"""Environments that a program makes, each by itself, and which of them an expression may mean."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import NOTHING, Kind, Value, Values, of_kind
from ds_migrate.plain.ranks.data.losses.returned_values import returned_values
from ds_migrate.syntax.nodes import single_index
from ds_migrate.syntax.source import SourceFile

_LIBRARIES = ("gym", "gymnasium")
MAKERS = tuple(f"{library}.{name}" for library in _LIBRARIES for name in ("make", "make_vec", "vector.make"))
_WRAPPED = frozenset({"env", "envs", "unwrapped"})  # attributes of a wrapper that are what it wraps
_NO_ENVIRONMENTS = frozenset({"torch", "numpy", "random"})
_DEPTH = 8


class MadeEnvironments:
    """The environments of a program: the result of each call that makes one, once for each call that returns it.

    Attributes:
        makers: the calls that make one.
        all: the environments.
    """

    def __init__(self, files: list[SourceFile], flow: Flow) -> None:
        self._flow = flow
        self._calls = [(file, call) for file in files for call in file.nodes(cst.Call)]
        self.makers = [(file, call) for file, call in self._calls if flow.is_call_of(call, file, MAKERS)]
        self._nodes = {id(call) for _, call in self.makers}
        self._known: dict[tuple[int | Value, int], Values] = {}  # many ways lead to the same values
        found = NOTHING.union(*(self.meant(call, file) for file, call in self._calls)) if self.makers else NOTHING
        copied = {origin[0] for value in found if (origin := flow.copies.origin(value)) is not None}
        self.all = flow.in_order(found - copied)

    def acted_on(self, call: cst.Call, file: SourceFile) -> Values:
        """Return the environments that a method may be called of: all where nothing shows what it is called of."""
        if not isinstance(call.func, cst.Attribute):
            return NOTHING
        owner = call.func.value
        if found := self.owners(call.func, file):
            return found
        values = self._flow.values(owner, file)
        libraries = {value.name.split(".")[0] for value in of_kind(values, Kind.EXTERNAL, Kind.OBJECT)}
        of_program = of_kind(self._flow.values(call.func, file), Kind.METHOD, Kind.FUNCTION)  # which are looked into
        is_other = bool(of_program) or (bool(libraries) and libraries <= _NO_ENVIRONMENTS)
        around = file.function(call)
        hands_on = around is not None and around.name.value == call.func.attr.value  # as a wrapper's method does
        return NOTHING if is_other or hands_on else frozenset(self.all)

    def owners(self, method: cst.Attribute, file: SourceFile) -> Values:
        """Return the environments that a method, or one of their spaces, is shown to be of."""
        owner = method.value
        if isinstance(owner, cst.Attribute) and owner.attr.value.endswith("_space"):
            owner = owner.value
        return self.meant(owner, file)

    def maker(self, environment: Value) -> tuple[SourceFile, cst.Call]:
        """Return the call that makes an environment for the program: the outermost that returns it."""
        if calls := self._flow.copies.calls(environment):
            return calls[-1]
        node = self._flow.node(environment)
        assert isinstance(node, cst.Call)
        return self._flow.file(environment), node

    def meant(self, node: cst.BaseExpression, file: SourceFile, depth: int = _DEPTH) -> Values:
        """Return the environments that an expression may be, wrap or return when it is called."""
        if (id(node), depth) not in self._known:
            self._known[id(node), depth] = self._find_meant(node, file, depth)
        return self._known[id(node), depth]

    def _find_meant(self, node: cst.BaseExpression, file: SourceFile, depth: int) -> Values:
        values = self._flow.values(node, file)
        if depth and isinstance(node, (cst.Lambda, cst.GeneratorExp)):  # which have no values
            return NOTHING.union(*(self.meant(part, file, depth - 1) for part in _parts(node)))
        if depth and isinstance(node, cst.Call):
            found = self._returned(node, file, depth - 1)
            if of_kind(values, Kind.INSTANCE):  # all instances of a class are one value
                found = found.union(*(self.meant(arg.value, file, depth - 1) for arg in node.args))
        elif depth:
            found = NOTHING.union(*(self.meant(value, home, depth - 1) for value, home in self._given(node, file)))
        else:
            found = NOTHING
        return found or NOTHING.union(*(self._inside(value, depth) for value in values))

    def _returned(self, call: cst.Call, file: SourceFile, depth: int) -> Values:
        """Return the environments that a call of a function of the program makes, in objects of its classes."""
        found = NOTHING.union(
            *(self.meant(value, home, depth) for home, value in returned_values(call, file, self._flow))
        )
        for function in of_kind(self._flow.values(call.func, file), Kind.FUNCTION, Kind.METHOD):
            found = frozenset(self._flow.copies.made_by(value, function.key, file, call) for value in found)
        return found

    def _given(self, node: cst.BaseExpression, file: SourceFile) -> Iterator[tuple[cst.BaseExpression, SourceFile]]:
        """Yield what a name or an attribute is set to, and what calls give for a parameter."""
        if isinstance(node, cst.Subscript) and isinstance(node.value, (cst.Name, cst.Attribute)):
            for value in self._flow.scopes(file).assigned(node.value):
                yield from ((item, file) for item in _items(value, node))
        elif isinstance(node, (cst.Name, cst.Attribute)):
            yield from self._flow.callers.sources(node, file)

    def _inside(self, value: Value, depth: int) -> Values:
        """Return the environments that a value is, wraps, holds or returns."""
        if (value, depth) not in self._known:
            self._known[value, depth] = self._find_inside(value, depth)
        return self._known[value, depth]

    def _find_inside(self, value: Value, depth: int) -> Values:
        if depth == 0:
            return NOTHING
        if value.kind is Kind.PART and {*value.name.split("[")[0].split(".")} <= _WRAPPED:
            value = Value(Kind.OBJECT, value.key)
        flow = self._flow
        if value.kind is Kind.OBJECT:
            if id(flow.node(value)) in self._nodes:
                return frozenset({value._replace(name="", of=0)})
            if (origin := flow.copies.origin(value)) is not None:
                return flow.copies.along(value, self._inside(origin[0], depth))
        if value.kind in (Kind.OBJECT, Kind.SEQUENCE):
            parts = NOTHING.union(*(self.meant(part, flow.file(value), depth - 1) for part in _parts(flow.node(value))))
            if parts:
                return parts
        if value.kind is Kind.FUNCTION:
            held = flow.held((value.key, "return"))
        elif value.kind is Kind.INSTANCE:
            held = NOTHING
            for file, call in self._calls:
                if value in flow.values(call, file):
                    return NOTHING.union(*(self.meant(arg.value, file, depth - 1) for arg in call.args))
        else:
            held = flow.items_of(value) if value.kind in (Kind.SEQUENCE, Kind.MAPPING) else NOTHING
        return NOTHING.union(*(self._inside(one, depth - 1) for one in held))


def _items(container: cst.BaseExpression, item: cst.Subscript) -> list[cst.BaseExpression]:
    """Return the elements of a literal dict or list that an item of it may be: of a key that is a text, that alone."""
    if not isinstance(container, cst.Dict):
        return list(_parts(container)) if isinstance(container, (cst.List, cst.Tuple, cst.ListComp)) else []
    elements = [element for element in container.elements if isinstance(element, cst.DictElement)]
    index = single_index(item)
    if isinstance(index, cst.SimpleString):
        key = index.evaluated_value
        texts = [e for e in elements if isinstance(e.key, cst.SimpleString) and e.key.evaluated_value == key]
        elements = texts or elements
    return [element.value for element in elements]


def _parts(node: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    """Yield the expressions that an object is made of, or that a function without a name returns."""
    if isinstance(node, cst.Lambda):
        yield node.body
    elif isinstance(node, cst.Call):
        yield from (arg.value for arg in node.args)
    elif isinstance(node, (cst.List, cst.Tuple)):
        yield from (element.value for element in node.elements)
    elif isinstance(node, (cst.ListComp, cst.GeneratorExp)):
        yield node.elt
