"""Optimizers of attacks: they move a tensor that is made from each batch, as in TRADES, and train no module."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from ds_migrate.plain.dataflow.calls.callers import Callers
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import NOTHING, Kind, Value, Values, of_kind
from ds_migrate.plain.recognition.batches.loaders import loaders_of
from ds_migrate.plain.recognition.facts import Step, optimizers_of
from ds_migrate.plain.recognition.parameters.standalone_tensors import TENSOR_FACTORIES
from ds_migrate.syntax.nodes import argument, dotted, parameters, targets, walk
from ds_migrate.syntax.source import SourceFile

_USES = frozenset({"step", "zero_grad", "param_groups"})
_COUNTS = frozenset({"range", "trange", "tqdm.trange"})
_OF_TENSORS = frozenset({"shape", "size", "data", "clone", "detach"})
_MOVES = frozenset({"to", "cuda", "cpu", "float", "double", "half"})
_LIKE = ("_like",)


def find_attacks(steps: Sequence[Step], flow: Flow, callers: Callers) -> Values:
    """Return the optimizers of attacks; none where nothing else is trained."""
    found = frozenset(value for value in optimizers_of(steps) if _Attack(value, flow, callers).is_one())
    trained = [step.optimizers - found for step in steps if step.optimizers - found]
    mixed = frozenset(value for step in steps if step.optimizers - found for value in step.optimizers)
    return found - mixed if trained else frozenset()


def attacked_names(attacks: Values, flow: Flow) -> Iterator[tuple[int, str]]:
    """Yield the names of the tensors that attacks move, each with the identity of its function or module."""
    for value in attacks:
        file, maker = flow.file(value), flow.node(value)
        for name in _tensors(maker):
            yield id(file.function(maker) or file.module), name


def _tensors(maker: cst.CSTNode) -> list[str]:
    """Return the names in the list that an optimizer is given; nothing where it is given anything else."""
    given = argument(maker, 0, "params") if isinstance(maker, cst.Call) else None
    if given is None or not isinstance(given.value, (cst.List, cst.Tuple)):
        return []
    names = [element.value for element in given.value.elements]
    return [node.value for node in names if isinstance(node, cst.Name)] if all(map(_is_name, names)) else []


def _is_name(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Name)


class _Attack:
    """An optimizer that may be an attack's."""

    def __init__(self, value: Value, flow: Flow, callers: Callers) -> None:
        self._flow = flow
        self._callers = callers
        self._file, self._maker = flow.file(value), flow.node(value)
        self._function = self._file.function(self._maker)
        self._scope = self._function or self._file.module

    def is_one(self) -> bool:
        """Return whether its function alone uses it, to step tensors made from data, and takes no further data."""
        around = self._file.parent(self._maker)
        names = targets(around) if isinstance(around, cst.Assign) else []
        tensors = _tensors(self._maker)
        if not tensors or len(names) != 1 or not isinstance(names[0], cst.Name):
            return False
        uses = [n for n in self._names(names[0].value) if n is not names[0]]
        if not all(self._is_local_use(node) for node in uses):
            return False
        return not any(self._draws_data(node) for node in uses) and all(map(self._is_made_of_data, tensors))

    def _names(self, name: str) -> list[cst.Name]:
        return [n for n in self._file.nodes(cst.Name, below=self._scope) if n.value == name]

    def _is_local_use(self, node: cst.Name) -> bool:
        around = self._file.parent(node)
        if isinstance(around, cst.Arg):
            call = self._file.parent(around)
            made = self._flow.values(call, self._file) if call is not None else NOTHING
            return bool(made) and made == of_kind(made, Kind.SCHEDULE)
        return isinstance(around, cst.Attribute) and around.value is node and around.attr.value in _USES

    def _draws_data(self, node: cst.Name) -> bool:
        """Return whether a loop around a use, and not around the tensors, may take further data."""
        outside = {id(outer) for outer in self._file.ancestors(self._maker)}
        for outer in self._file.ancestors(node):
            if id(outer) in outside:
                return False
            if isinstance(outer, (cst.For, cst.While)):
                inner = list(walk(outer))
                counts = isinstance(outer, cst.While) or any(_calls(part, _COUNTS) for part in walk(outer.iter))
                loops = [part.iter for part in inner if isinstance(part, (cst.For, cst.CompFor))]
                takes = any(_calls(part, {"next"}) for part in inner)
                if not counts or takes or any(loaders_of(each, self._file, self._flow) for each in loops):
                    return True
        return True

    def _is_made_of_data(self, name: str) -> bool:
        """Return whether a tensor has the shape of what its function is given, or goes through, and no module's."""
        known, parts = {name}, list[cst.CSTNode]()
        names = {name}
        while names:
            made = [v for v in self._file.values_of(names, self._scope) if self._file.function(v) is self._function]
            parts += [part for value in made for part in walk(value)]
            names = {part.value for value in made for part in walk(value) if isinstance(part, cst.Name)} - known
            known |= names
        values = [value for part in parts for value in self._flow.values(part, self._file)]
        if any(value.kind is Kind.MODULE or self._is_of_module(value) for value in values):
            return False
        return any(self._is_data(base) for part in parts if (base := _shaped_like(part)) is not None)

    def _is_of_module(self, value: Value) -> bool:
        """Return whether a value is an attribute or item of what may be a module, rather than of a tensor."""
        made = self._flow.node_of(value.key) if value.kind is Kind.PART else None
        return made is not None and not self._is_moved(*made) and any(
            base.name not in TENSOR_FACTORIES for base in self._flow.values(made[1], made[0])
        )  # fmt: skip

    def _is_moved(self, file: SourceFile, call: cst.CSTNode) -> bool:
        """Return whether a call moves a batch: ``to()`` or ``cuda()`` of what nothing in the program makes."""
        func = call.func if isinstance(call, cst.Call) else None
        if not isinstance(func, cst.Attribute) or func.attr.value not in _MOVES:
            return False
        return all(value.key == id(call) for value in self._flow.values(func.value, file))  # x = x.to(device)

    def _is_data(self, name: str) -> bool:
        """Return whether a name is a batch of a loop, or a parameter that is given no part of a module."""
        name = name.partition(".")[0]
        loops = [n for n in self._file.nodes(cst.For, below=self._scope) if name in map(dotted, walk(n.target))]
        if loops:
            return all(loaders_of(loop.iter, self._file, self._flow) for loop in loops)
        function = self._function
        if function is None or name not in {p.name.value for p in parameters(function)} or name == "self":
            return False
        given = [(file, self._flow.given(call, function, name, file)) for file, call in self._callers.of(function)]
        return bool(given) and not any(arg is not None and self._may_be_part(arg.value, file) for file, arg in given)

    def _may_be_part(self, node: cst.BaseExpression, file: SourceFile) -> bool:
        """Return whether an argument is a module, a part of one, or what a loop over parameters gives."""
        values = self._flow.values(node, file)
        return any(value.kind is Kind.MODULE or self._is_of_module(value) for value in values) or _is_parameter(
            node, file
        )


def _shaped_like(node: cst.CSTNode) -> str | None:
    """Return the name of the tensor whose shape or values an expression takes."""
    if isinstance(node, cst.Attribute) and node.attr.value in _OF_TENSORS:
        return dotted(node.value)
    if isinstance(node, cst.Call) and node.args and (dotted(node.func) or "").endswith(_LIKE):
        return dotted(node.args[0].value)
    return None


def _is_parameter(node: cst.BaseExpression, file: SourceFile) -> bool:
    """Return whether a name is what a loop over the parameters of a module gives."""
    return isinstance(node, cst.Name) and any(
        any(isinstance(part, cst.Attribute) and part.attr.value.endswith("parameters") for part in walk(loop.iter))
        for loop in file.nodes(cst.For, cst.CompFor)
        if node.value in map(dotted, walk(loop.target))
    )


def _calls(node: cst.CSTNode, names: frozenset[str] | set[str]) -> bool:
    return isinstance(node, cst.Call) and dotted(node.func) in names
