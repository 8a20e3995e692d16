"""Copies of a model's weights, as averages and teachers begin with, also of a model that other code gives."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.scopes import names_in
from ds_migrate.plain.dataflow.values import Kind, Values, of_kind
from ds_migrate.plain.decisions.plan import Note
from ds_migrate.plain.recognition.facts import LoopFacts
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import called_name, last_name, parameters, targets, walk
from ds_migrate.syntax.source import SourceFile

_WEIGHTS = frozenset({"parameters", "named_parameters", "state_dict"})
_WRITES = frozenset({"copy_", "mul_", "add_", "sub_", "lerp_"})
_COPIES = frozenset({"clone", "copy", "deepcopy", "parameters_to_vector"})
_DEPTH = 3  # of names that are made of others


def weight_copies(modules: Values, flow: Flow) -> Iterator[tuple[SourceFile, cst.Call]]:
    """Yield the calls that copy the weights of these modules: ranks must hold the same by then."""
    for file in flow.files.values():
        yield from ((file, call) for call in file.nodes(cst.Call) if _is_copy(call, file, modules, flow))
        yield from ((file, call) for call in _copies(file, modules, flow))


def _is_copy(call: cst.Call, file: SourceFile, modules: Values, flow: Flow) -> bool:
    """Return whether a call copies a module, or keeps an average of it, as the classes of libraries do."""
    name = last_name(call.func)
    is_average = "ema" in name.lower().split("_") or "EMA" in name or name.endswith(("Ema", "AveragedModel"))
    given = [arg.value for arg in call.args]
    return (name == "deepcopy" or is_average) and any(flow.values(arg, file) & modules for arg in given)


def _copies(file: SourceFile, modules: Values, flow: Flow) -> Iterator[cst.Call]:
    """Yield the calls of a function, or a module, that copy or mix weights that it asks these modules for."""
    asked: dict[cst.FunctionDef | None, list[tuple[cst.Call, Values]]] = {}
    for call in file.nodes(cst.Call):
        if isinstance(call.func, cst.Attribute) and call.func.attr.value in _WEIGHTS:
            values = of_kind(flow.values(call.func.value, file), Kind.MODULE, Kind.OBJECT, Kind.PART)
            asked.setdefault(file.function(call), []).append((call, values))
    for function, found in asked.items():
        own = {id(call) for call, values in found if values & modules}
        is_mixed = any(values and not values & modules for _, values in found)
        names = _names_of(own, function, file) if own else set()
        for call in file.nodes(cst.Call, below=function or file.module) if own else ():
            if file.function(call) is not function:
                continue
            name = called_name(call)
            is_copy = name in _COPIES and _has(call, own, names)
            is_loaded = name == "load_state_dict" and any(_has(arg, own, names) for arg in call.args)
            is_other = isinstance(call.func, cst.Attribute) and not flow.values(call.func.value, file) & modules
            if is_copy or (is_loaded and is_other) or (is_mixed and name in _WRITES):
                yield call


def _names_of(own: set[int], function: cst.FunctionDef | None, file: SourceFile) -> set[str]:
    """Return the names that hold these calls' weights, or are made of them."""
    names = set[str]()
    for _ in range(_DEPTH):
        for node in file.nodes(cst.Assign, cst.For, cst.CompFor, below=function or file.module):
            value, bound = (node.value, targets(node)) if isinstance(node, cst.Assign) else (node.iter, [node.target])
            if file.function(node) is function and _has(value, own, names):
                names |= {name for target in bound for name in names_in(target)}
    return names


def _has(node: cst.CSTNode, own: set[int], names: set[str]) -> bool:
    return any(id(part) in own or (isinstance(part, cst.Name) and part.value in names) for part in walk(node))


class GivenModels:
    """The models of a program that are parameters of functions which nothing in it calls, and the copies of them."""

    def __init__(self, facts: LoopFacts) -> None:
        self._facts = facts
        modules = frozenset(value for site in facts.sites for value in site.of)
        self._modules = frozenset(v for v in modules if not isinstance(facts.flow.node(v), cst.Call))
        self._copies = [
            (file, call, function) for file, call in weight_copies(self._modules, facts.flow)
            if (function := file.function(call)) is not None
        ] if self._modules else []  # fmt: skip

    def names_to_share(self, start: cst.BaseStatement, file: SourceFile) -> list[str]:
        """Return the parameters of the function where ranks start that are models which are copied behind it."""
        function = file.function(start)
        if function is None or not any(self._follows(copying, function) for _, _, copying in self._copies):
            return []
        return [name for name in self._given(function, file) if name != "self"]

    def early_copies(self, start: cst.BaseStatement, file: SourceFile) -> Iterator[Note]:
        """Yield a note for each copy that the object makes whose method starts the ranks, before that."""
        function, owner = file.function(start), file.class_around(start)
        inits = [f for f in file.nodes(cst.FunctionDef, below=owner) if f.name.value == "__init__"] if owner else []
        for home, call, copying in self._copies:
            if function in inits or not any(self._follows(copying, init) for init in inits):
                continue
            message = (
                "this copy begins with each rank's own weights: the model comes from outside, "
                "and the engine, which is made later, gives all ranks rank 0's"
            )
            advice = "call init_distributed(), and share_weights() with the model, before it is copied"
            yield Note(Code.PLAIN_AGREEMENT, home, call, message, advice)

    def _given(self, function: cst.FunctionDef, file: SourceFile) -> Iterator[str]:
        flow = self._facts.flow
        for parameter in parameters(function):
            if any(
                flow.values(name, file) & self._modules
                for name in file.nodes(cst.Name, below=function.body) if name.value == parameter.name.value
            ):  # fmt: skip
                yield parameter.name.value

    def _follows(self, copying: cst.FunctionDef, function: cst.FunctionDef) -> bool:
        return copying is function or self._facts.flow.callers.reaches(id(function), copying)
