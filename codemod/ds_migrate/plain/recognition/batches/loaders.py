"""The data loaders of training loops: the size of their batches, and whether each rank gets a share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from ds_migrate.plain.dataflow.branches.dead_branches import leaves_out
from ds_migrate.plain.dataflow.branches.latest_values import latest_value
from ds_migrate.plain.dataflow.branches.written_rounds import (
    Bindings,
    constant_of,
    is_left_out,
    item_in_round,
    rounds_of,
)
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import NOTHING, Kind, Value, Values, of_kind
from ds_migrate.plain.recognition.batches.drawn_batches import drawn_batches
from ds_migrate.plain.recognition.batches.passed_objects import passed_on
from ds_migrate.plain.recognition.batches.phases import other_phases
from ds_migrate.plain.recognition.batches.single_draws import is_of_all_data, is_of_one_round
from ds_migrate.plain.recognition.facts import LoopFacts, Step
from ds_migrate.syntax.branches import parting
from ds_migrate.syntax.nodes import argument, code, dotted, iterator_argument, parameters, walk
from ds_migrate.syntax.source import SourceFile

_Below = tuple[cst.Call, SourceFile, cst.FunctionDef, cst.CSTNode, SourceFile]


def training_loaders(steps: Sequence[Step], facts: LoopFacts) -> list[tuple[SourceFile, cst.Call]]:
    """Return the calls that make the loaders whose batches the steps are made of."""
    found: dict[int, tuple[SourceFile, cst.Call]] = {}
    for step in steps:
        for file, node in sources_of(step.file, step.node, facts, depth=3):
            loaders = loaders_of(node, file, facts.flow)
            for value in facts.flow.in_order(loaders - other_phases(step, file, node, facts.flow)):
                maker = facts.flow.node(value)
                assert isinstance(maker, cst.Call)
                found[id(maker)] = facts.flow.file(value), maker
        idle, busy = _given(step.file, step.node, facts, depth=3)
        unused, used = _in_rounds(step, facts.flow)
        for value in (idle | unused) - busy - used:
            found.pop(value.key, None)
    return list(found.values())


def _given(
    file: SourceFile,
    node: cst.CSTNode,
    facts: LoopFacts,
    depth: int,
    names: frozenset[str] | None = None,
    below: _Below | None = None,
) -> tuple[Values, Values]:
    """Return the loaders that calls of the functions around a node are given, without it and with it running.

    Args:
        names: the parameters of the function around the node that matter; None for all.
        below: where the node is a call, the node in its function that this is asked for.
    """
    idle: Values = frozenset()
    busy: Values = frozenset()
    function = file.function(node)
    for caller, call in facts.flow.callers.of(function) if function is not None and depth else ():
        assert function is not None
        args = _arguments(call, function, caller, names, facts.flow)
        for bindings in rounds_of(call, caller, facts.flow):
            held = [(arg, found) for arg in args if (found := _held(arg, caller, bindings, facts.flow))]
            if (
                leaves_out(call, caller, function, node, file, facts.flow, bindings)
                or is_left_out(call, caller, bindings, facts.flow)
                or (
                    below is not None and leaves_out(*below, facts.flow, _constants(call, caller, function, facts.flow))
                )
            ):
                idle |= frozenset().union(*(found for _, found in held))
                continue
            around = caller.function(call)
            calls = facts.flow.callers.of(around) if around is not None and depth > 1 else ()
            known = {p.name.value for p in parameters(around)} if around is not None and calls else set()
            passed = frozenset(arg.value for arg, _ in held if isinstance(arg, cst.Name)) & known
            busy |= frozenset(v for arg, found in held if dotted(arg) not in passed for v in found)
            if passed or not held:  # what is passed on is what each call around gives
                inner = call, caller, function, node, file
                deeper, others = _given(caller, call, facts, depth - 1, passed or None, inner)
                idle, busy = idle | deeper, busy | others
    return idle, busy


def _constants(call: cst.Call, file: SourceFile, function: cst.FunctionDef, flow: Flow) -> Bindings:
    """Return the parameters of a function for which a call gives a constant, with it."""
    given = ((p.name.value, flow.given(call, function, p.name.value, file)) for p in parameters(function))
    return {name: arg.value for name, arg in given if arg is not None and constant_of(arg.value, {}, file, flow, 0)}


def _in_rounds(step: Step, flow: Flow) -> tuple[Values, Values]:
    """Return the loaders that a loop around a step has in rounds without it and with it running."""
    idle: Values = frozenset()
    busy: Values = frozenset()
    loops = [outer for outer in step.file.ancestors(step.node) if isinstance(outer, cst.For)]
    parts = [part for loop in loops for part in walk(loop.iter) if isinstance(part, cst.Name)]
    for bindings in rounds_of(step.node, step.file, flow):
        bound = [part for part in parts if item_in_round(part, bindings, step.file, flow) is not part]
        found = frozenset(v for part in bound for v in _held(part, step.file, bindings, flow))
        if is_left_out(step.node, step.file, bindings, flow):
            idle |= found
        else:
            busy |= found
    return idle, busy


def _held(arg: cst.BaseExpression, file: SourceFile, bindings: Bindings, flow: Flow) -> Values:
    """Return the loaders that an expression iterates over in one round of a loop around it."""
    item = item_in_round(arg, bindings, file, flow)
    index = item.slice[0].slice if isinstance(item, cst.Subscript) else None
    key = constant_of(index.value, bindings, file, flow) if isinstance(index, cst.Index) and bindings else ""
    if isinstance(item, cst.Subscript) and key:
        mappings = of_kind(flow.values(item.value, file), Kind.MAPPING)
        found = [values for m in mappings for k, values in flow.literal_items(m) if k == f"[{key}]".replace("'", '"')]
        return of_kind(frozenset().union(*found), Kind.LOADER)
    return loaders_of(item, file, flow)


def _arguments(
    call: cst.Call, function: cst.FunctionDef, file: SourceFile, names: frozenset[str] | None, flow: Flow
) -> list[cst.BaseExpression]:
    """Return what a call gives to some parameters of a function, or to all."""
    if names is None:
        return [arg.value for arg in call.args]
    given = (flow.given(call, function, name, file) for name in sorted(names))
    return [arg.value for arg in given if arg is not None]


def sources_of(
    file: SourceFile, node: cst.CSTNode, facts: LoopFacts, depth: int, is_fed: bool = False
) -> Iterator[tuple[SourceFile, cst.BaseExpression]]:
    """Yield what the loops around a node run over, those around the calls of its function too.

    Args:
        is_fed: whether a loop over a loader in a function that the node leads to makes the batches: those that
            ``next()`` draws here are its data.
    """
    function, loops = file.function(node), list[cst.For]()
    for outer in file.ancestors(node):
        if isinstance(outer, cst.For):
            loops.append(outer)
            yield file, outer.iter
        elif isinstance(outer, cst.BaseComp):
            inner: cst.CompFor | None = outer.for_in
            while inner is not None:
                yield file, inner.iter
                inner = inner.inner_for_in
        if outer is function:
            break
    for draw in drawn_batches(file, node, facts) if not is_fed else ():
        if is_of_one_round(draw, facts.flow) or is_of_all_data(draw, facts.flow):
            continue
        is_held = draw.holder is not None and len(_given_loaders(draw.holder, file, facts.flow, depth=4)) == 1
        yield (file, draw.holder) if draw.holder is not None and is_held else (draw.file, draw.iterator)
    if function is not None and depth:
        is_fed = is_fed or any(loaders_of(loop.iter, file, facts.flow) for loop in loops)
        for caller, call in facts.flow.callers.of(function):
            if not leaves_out(call, caller, function, node, file, facts.flow):
                yield from sources_of(caller, call, facts, depth - 1, is_fed)


def items_ignore_index(maker: cst.Call, file: SourceFile, flow: Flow) -> bool:
    """Return whether a loader's dataset, a class of the program, draws its items whatever index it is given."""
    dataset = argument(maker, 0, "dataset")
    for value in of_kind(flow.values(dataset.value, file), Kind.INSTANCE) if dataset is not None else ():
        method = flow.classes.method(value.key, "__getitem__")
        function = flow.node(method) if method is not None else None
        if method is None or flow.classes.is_abstract(method):
            continue
        if not isinstance(function, cst.FunctionDef) or len(parameters(function)) != 2:
            continue
        index, owner = parameters(function)[1].name.value, flow.file(method)
        reads = [name for name in owner.nodes(cst.Name, below=function.body) if name.value == index]
        draws = [call for call in owner.nodes(cst.Call, below=function.body) if _is_draw(call, owner, flow)]
        if all(any(_replaces(draw, read, owner) for draw in draws) for read in reads):
            return True
    return False


def _is_draw(call: cst.Call, file: SourceFile, flow: Flow) -> bool:
    called = of_kind(flow.values(call.func, file), Kind.EXTERNAL)
    return any(value.name.startswith(("random.", "numpy.random.", "torch.rand")) for value in called)


def _replaces(draw: cst.Call, read: cst.Name, file: SourceFile) -> bool:
    """Return whether a condition, which draws nothing, chooses between a drawn item and one at an index."""
    condition = parting(file, draw, read)
    return condition is not None and "random" not in code(condition.test)


def loaders_of(node: cst.BaseExpression, file: SourceFile, flow: Flow, depth: int = 4) -> Values:
    """Return the loaders that an expression iterates over, through enumerate(), tqdm(), iter() and the like."""
    values = flow.values(node, file)
    held = of_kind(values, Kind.LOADER)
    if held or depth == 0:
        return held
    given, instances = _given_loaders(node, file, flow, depth), of_kind(values, Kind.INSTANCE)
    return given if len(given) == 1 else _loaders_in(instances, flow, depth) or given or _begun(values, flow, depth)


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
    if instances and len(_given_loaders(node, file, flow, depth)) != 1:
        return len(_loaders_in(instances, flow, depth)) > 1 and not all(_is_drawn_from_once(v, flow) for v in instances)
    return any(are_mixed(part, file, flow, depth - 1) for part in parts_of(node, file, flow))


def _loaders_in(instances: Values, flow: Flow, depth: int) -> Values:
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


def _given_loaders(node: cst.BaseExpression, file: SourceFile, flow: Flow, depth: int) -> Values:
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
            returned = (node.value for node in file.nodes(cst.Return, below=function))
            yield from ((value, file) for value in returned if isinstance(value, (cst.Call, cst.GeneratorExp)))
        yield from (
            (given, file) for call in file.nodes(cst.Call, below=function)
            if (given := iterator_argument(call, "iter") or iterator_argument(call, "next")) is not None
        )  # fmt: skip


def can_be_sharded(maker: cst.Call, file: SourceFile, flow: Flow) -> bool:
    """Return whether a loader gives all data to each rank, and can give each a share."""
    for name in ("sampler", "batch_sampler"):
        given = argument(maker, None, name)
        if given is not None and dotted(given.value) != "None" and _is_distributed(given.value, file, flow):
            return _may_be_none(given.value, file, flow)
    return True


def _may_be_none(node: cst.BaseExpression, file: SourceFile, flow: Flow) -> bool:
    """Return whether a sampler is None, or gives all data, on another path, where shard() divides the data."""
    if isinstance(node, cst.Name):
        assigned = file.values_of({node.value}, flow.scopes(file).owner(node.value, node))
    else:
        assigned = [node]
    paths = [part for value in assigned for part in _paths(value)]
    if any(dotted(path) == "None" or not _is_distributed(path, file, flow) for path in paths):
        return True
    functions = (v for path in paths if isinstance(path, cst.Call) for v in flow.values(path.func, file))
    for function in of_kind(frozenset(functions), Kind.FUNCTION, Kind.METHOD):  # returns it in one of its branches
        other = flow.file(function)
        returned = [n.value for n in other.nodes(cst.Return, below=flow.node(function))]
        if any(value is None or dotted(value) == "None" for value in returned):
            return True
        if any(value is not None and not _is_distributed(value, other, flow) for value in returned):
            return True
    return False


def _paths(node: cst.BaseExpression) -> list[cst.BaseExpression]:
    return [node.body, node.orelse] if isinstance(node, cst.IfExp) else [node]


def _is_distributed(node: cst.BaseExpression, file: SourceFile, flow: Flow) -> bool:
    values = flow.values(node, file)
    makers = [flow.node(v) for v in values if v.key and isinstance(flow.node(v), cst.Call)]
    names = [
        dotted(n) or "" for maker in (*makers, node) for n in walk(maker) if isinstance(n, (cst.Name, cst.Attribute))
    ]
    return any("Distributed" in name or "num_replicas" in name for name in names)
