"""The loaders that an expression iterates over, through the names, calls and objects that hold them."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.dataflow.branches.set_names import latest_value
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import NOTHING, Kind, Value, Values, of_kind
from ds_migrate.plain.recognition.batches.passed_objects import passed_on
from ds_migrate.syntax.nodes import dotted, iterator_argument
from ds_migrate.syntax.source import SourceFile


def loaders_of(node: cst.BaseExpression, file: SourceFile, flow: Flow, depth: int = 4) -> Values:
    """Return the loaders that an expression iterates over, through enumerate(), tqdm(), iter() and the like."""
    return flow.once(_loaders_of, node, file, depth)


def _loaders_of(flow: Flow, node: cst.BaseExpression, file: SourceFile, depth: int) -> Values:
    values = flow.values(node, file)
    held = of_kind(values, Kind.LOADER)
    if held or depth == 0:
        return held
    given, instances = given_loaders(node, file, flow, depth), of_kind(values, Kind.INSTANCE)
    return given if len(given) == 1 else loaders_in(instances, flow, depth) or given or _begun(values, flow, depth)


def _begun(iterators: Values, flow: Flow, depth: int) -> Values:
    """Return the loaders of which ``iter()`` has made these objects, which a dict or another file may hold."""
    found: set[Value] = set()
    for value in of_kind(iterators, Kind.OBJECT):
        maker = flow.node(value)
        iterable = iterator_argument(maker, "iter") if isinstance(maker, cst.Call) else None
        if iterable is not None:
            found |= loaders_of(iterable, flow.file(value), flow, depth - 1)
    return frozenset(found)


def are_mixed(node: cst.BaseExpression, file: SourceFile, flow: Flow, depth: int = 4) -> bool:
    """Return whether the loaders of an expression may be those of other objects of a class too."""
    values = flow.values(node, file)
    if of_kind(values, Kind.LOADER) or depth == 0:
        return False
    instances = of_kind(values, Kind.INSTANCE)
    if instances and len(given_loaders(node, file, flow, depth)) != 1:
        return len(loaders_in(instances, flow, depth)) > 1 and not all(_is_drawn_from_once(v, flow) for v in instances)
    return any(are_mixed(part, file, flow, depth - 1) for part in parts_of(node, file, flow))


def loaders_in(instances: Values, flow: Flow, depth: int) -> Values:
    """Return the loaders that objects iterate over. All objects of a class are one value, with the loaders of each."""
    return frozenset(
        v for instance in instances for inner, within in _iterated_by(instance, flow)
        for v in loaders_of(inner, within, flow, depth - 1)
    )  # fmt: skip


def _is_drawn_from_once(instance: Value, flow: Flow) -> bool:
    """Return whether one line alone takes batches from objects of a class, of which the program makes one."""
    places = list(flow.nodes(cst.Call, cst.For, cst.CompFor))
    calls = [(file, node) for file, node in places if isinstance(node, cst.Call)]
    made = [
        c for file, c in calls if any(v.key == instance.key for v in of_kind(flow.values(c.func, file), Kind.CLASS))
    ]
    sources = [(file, node.iter) for file, node in places if not isinstance(node, cst.Call)]
    sources += [(file, call.args[0].value) for file, call in calls if dotted(call.func) == "next" and call.args]
    return len(made) == 1 and sum(instance in flow.values(source, file) for file, source in sources) == 1


def given_loaders(node: cst.BaseExpression, file: SourceFile, flow: Flow, depth: int) -> Values:
    """Return the loaders that the calls which make an expression are given; of a parameter, where all are known."""
    parts = parts_of(node, file, flow)
    if parts or not isinstance(node, cst.Name):
        return frozenset(v for part in parts for v in loaders_of(part, file, flow, depth - 1))
    passed = [loaders_of(part, at, flow, depth - 1) for at, part in passed_on(node, file, flow)]
    return frozenset().union(*passed) if all(passed) else NOTHING


def parts_of(node: cst.BaseExpression, file: SourceFile, flow: Flow) -> list[cst.BaseExpression]:
    """Return the arguments of a call, what a name is assigned or entered as, and what an item's container may hold.

    Of a comprehension, what it runs over.
    """
    if isinstance(node, (cst.GeneratorExp, cst.ListComp)):
        return [node.for_in.iter]
    if isinstance(node, cst.Call):
        iterable = iterator_argument(node, "iter")
        return [iterable] if iterable is not None else [arg.value for arg in node.args]
    if isinstance(node, cst.Name):
        latest = latest_value(node, file, flow.scopes(file))
        if latest is not None:
            return [latest]
        entered = [
            item.item for item in flow.scopes(file).nodes(node, cst.WithItem)
            if item.asname is not None and dotted(item.asname.name) == node.value
        ]  # fmt: skip
        return [*flow.scopes(file).assigned(node), *entered]
    if isinstance(node, cst.Attribute):
        return flow.scopes(file).assigned(node)
    if isinstance(node, cst.Subscript) and isinstance(node.value, (cst.Name, cst.Attribute)):
        return [item for container in flow.scopes(file).assigned(node.value) for item in _items(container)]
    return []


def _items(container: cst.BaseExpression) -> list[cst.BaseExpression]:
    """Return what a display or comprehension of a dict or list holds."""
    if isinstance(container, (cst.Dict, cst.List, cst.Tuple)):
        return [element.value for element in container.elements]
    if isinstance(container, (cst.DictComp, cst.ListComp)):
        return [container.value if isinstance(container, cst.DictComp) else container.elt]
    return []


def _iterated_by(instance: Value, flow: Flow) -> Iterator[tuple[cst.BaseExpression, SourceFile]]:
    """Yield what an object of a class of the program runs over, where a loop runs over the object."""
    for name in ("__iter__", "__next__"):
        method = flow.classes.method(instance.key, name)
        known = flow.node_of(method.key) if method is not None else None
        if known is None:
            continue
        file, function = known
        yield from ((loop.iter, file) for loop in file.nodes(cst.For, below=function))
        yield from ((delegated.item, file) for delegated in file.nodes(cst.From, below=function))
        if name == "__iter__":  # as of map(function, loader)
            yield from (
                (value, file) for value in file.returned(function) if isinstance(value, (cst.Call, cst.GeneratorExp))
            )
        yield from (
            (given, file) for call in file.nodes(cst.Call, below=function)
            if (given := iterator_argument(call, "iter") or iterator_argument(call, "next")) is not None
        )  # fmt: skip
