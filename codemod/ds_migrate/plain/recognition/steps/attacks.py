"""Optimizers of attacks: they move a tensor that is made from each batch, as in TRADES, and train no module."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import NOTHING, Kind, Value, Values, are_all
from ds_migrate.plain.recognition.batches.loaders import loaders_of
from ds_migrate.plain.recognition.facts import Step, optimizers_of
from ds_migrate.plain.recognition.parameters.standalone_tensors import TENSOR_FACTORIES
from ds_migrate.syntax.nodes import argument, dotted, iterator_argument, parameters, targets, walk
from ds_migrate.syntax.source import SourceFile

_USES = frozenset({"step", "zero_grad", "param_groups"})
_COUNTS = frozenset({"range", "trange", "tqdm.trange"})
_OF_TENSORS = frozenset({"shape", "size", "data", "clone", "detach"})
_OF_TENSORS_ALONE = frozenset({"data", "grad"})
_MOVES = frozenset({"to", "cuda", "cpu", "float", "double", "half"})
_LIKE = ("_like",)
_SHARED = frozenset({"data", "detach"})  # with what they are taken of
_DEPTH = 2  # functions that an optimizer is handed on through


def find_attacks(steps: Sequence[Step], flow: Flow) -> Values:
    """Return the optimizers of attacks; none where nothing else is trained."""
    found = frozenset(value for value in optimizers_of(steps) if _Attack(value, flow).is_one())
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
    found = [node.value for node in names if isinstance(node, cst.Name)]
    return found if len(found) == len(names) else []


@dataclass(frozen=True, eq=False)
class Use:
    """A use of an optimizer. ``outer``: what hands it to the function that this one is in."""

    file: SourceFile
    node: cst.Name
    outer: Use | None = None


class _Attack:
    """An optimizer that may be an attack's."""

    def __init__(self, value: Value, flow: Flow) -> None:
        self._flow = flow
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
        name = names[0]
        own = (n for n in self._file.nodes(cst.Name, below=self._scope) if n.value == name.value and n is not name)
        uses = [inner for node in own for inner in self._inner(Use(self._file, node), _DEPTH)]
        if not all(self._is_local(use) for use in uses):
            return False
        return not any(self._draws_data(use) for use in uses) and all(map(self._is_made_of_data, tensors))

    def _inner(self, use: Use, depth: int) -> list[Use]:
        """Return the uses of the optimizer in functions of the program that it is handed to, in the place of that."""
        around = use.file.parent(use.node)
        call = use.file.parent(around) if isinstance(around, cst.Arg) and around.keyword is not use.node else None
        given = self._flow.passed(call, use.file) if isinstance(call, cst.Call) and depth else ()
        found = []
        for (key, name), value in given:
            known = self._flow.function_of(key)
            if value is use.node and known is not None:
                file, function = known
                inner = (n for n in file.nodes(cst.Name, below=function.body) if n.value == name)
                found += [one for n in inner for one in self._inner(Use(file, n, use), depth - 1)]
        return found or [use]

    def _is_local(self, use: Use) -> bool:
        around = use.file.parent(use.node)
        if isinstance(around, cst.Arg):
            call = use.file.parent(around)
            made = self._flow.values(call, use.file) if call is not None else NOTHING
            return are_all(made, Kind.SCHEDULE) or around.keyword is use.node
        return isinstance(around, cst.Attribute) and around.value is use.node and around.attr.value in _USES

    def _draws_data(self, use: Use) -> bool:
        """Return whether a loop around a use, and not around the tensors, may take further data."""
        outside = {id(outer) for outer in self._file.ancestors(self._maker)}
        for outer in use.file.ancestors(use.node):
            if use.outer is not None and isinstance(outer, cst.FunctionDef):
                return self._draws_data(use.outer)
            if id(outer) in outside:
                return False
            if isinstance(outer, (cst.For, cst.While)):
                inner = list(walk(outer))
                counts = isinstance(outer, cst.While) or any(
                    isinstance(part, cst.Call) and dotted(part.func) in _COUNTS for part in walk(outer.iter)
                )
                loops = [part.iter for part in inner if isinstance(part, (cst.For, cst.CompFor))]
                takes = any(isinstance(p, cst.Call) and iterator_argument(p, "next") is not None for p in inner)
                if not counts or takes or any(loaders_of(each, use.file, self._flow) for each in loops):
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
        is_new = not any(isinstance(part, cst.Attribute) and part.attr.value in _SHARED for part in parts)
        return any(self._is_data(base, is_new=is_new) for part in parts if (base := _shaped_like(part)) is not None)

    def _is_of_module(self, value: Value) -> bool:
        """Return whether a value is an attribute or item of what may be a module, rather than of a tensor."""
        is_part = value.kind is Kind.PART and value.name.partition(".")[0] not in _OF_TENSORS_ALONE
        made = self._flow.node_of(value.key) if is_part else None
        return made is not None and not self._is_moved(*made) and any(
            base.name not in TENSOR_FACTORIES for base in self._flow.values(made[1], made[0])
        )  # fmt: skip

    def _is_moved(self, file: SourceFile, call: cst.CSTNode) -> bool:
        """Return whether a call moves a batch: ``to()`` or ``cuda()`` of what nothing in the program makes."""
        func = call.func if isinstance(call, cst.Call) else None
        if not isinstance(func, cst.Attribute) or func.attr.value not in _MOVES:
            return False
        return all(value.key == id(call) for value in self._flow.values(func.value, file))  # x = x.to(device)

    def _is_data(self, name: str, *, is_new: bool) -> bool:
        """Return whether a name is a batch of a loop, or a parameter that is given no part of a module.

        Where nothing in the program gives it, a tensor that is new, with no memory in common, is moved at least.
        """
        name = name.partition(".")[0]
        loops = [n for n in self._file.nodes(cst.For, below=self._scope) if name in map(dotted, walk(n.target))]
        if loops:
            return all(loaders_of(loop.iter, self._file, self._flow) for loop in loops)
        function = self._function
        if function is None or name not in {p.name.value for p in parameters(function)} or name == "self":
            return False
        given = [(file, self._flow.given(call, function, name, file)) for file, call in self._flow.callers.of(function)]
        return (bool(given) or is_new) and not any(
            arg is not None and self._may_be_part(arg.value, file) for file, arg in given
        )

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
