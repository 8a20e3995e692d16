"""Expressions that differ by rank, by the variables that do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator
from typing import TypeGuard, TypeVar

import libcst as cst

from ds_migrate.plain.dataflow.branches.blocks import Jumps
from ds_migrate.plain.dataflow.by_rank.body_names import BodyNames
from ds_migrate.plain.dataflow.by_rank.none_tests import NoneTests
from ds_migrate.plain.dataflow.by_rank.object_attributes import ObjectAttributes
from ds_migrate.plain.dataflow.containers.mappings import literal_index
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.foreign_gradients import is_foreign_gradient
from ds_migrate.plain.dataflow.lookup.options import Options
from ds_migrate.plain.dataflow.lookup.properties import properties_by_name
from ds_migrate.plain.dataflow.values import Kind, Value, Values, Variable, are_all, of_kind
from ds_migrate.syntax.nodes import children, dotted
from ds_migrate.syntax.source import SourceFile

Read = Variable | Value  # the value of what is called
_T = TypeVar("_T")

# Attributes and methods that are the same on each rank: shares have as many batches, of as many samples.
_SAME = frozenset({"shape", "device", "dtype", "ndim", "size", "dim", "numel", "batch_size", "dataset", "__class__"})
_ACCESSORS = frozenset({"loc", "iloc", "at", "iat"})  # of pandas
_SAME_CALLS = frozenset({"len", "isinstance", "type", "hasattr", "callable", "id"})
_BUILTIN_METHODS = frozenset(name for kind in (dict, list, set, str) for name in vars(kind) if name[0] != "_")
CLOCKS = (
    "time.time", "time.time_ns", "time.perf_counter", "time.perf_counter_ns", "time.monotonic", "time.monotonic_ns",
    "time.process_time", "time.process_time_ns", "timeit.default_timer", "datetime.datetime.now",
    "datetime.datetime.utcnow",
)  # fmt: skip
# What is read, besides variables, of nodes that may differ by themselves: shares of loaders; the time, and signals.
SHARE: Variable = (0, "share")
PROCESS: Variable = (0, "process")


def are_timed(files: Iterable[SourceFile], flow: Flow) -> bool:
    """Return whether files read the time, which each rank does at another moment."""
    return any(
        flow.is_call_of(call, file, CLOCKS)
        for file in files for call in (file.nodes(cst.Call) if b"time" in file.data else ())
    )  # fmt: skip


class RankExpressions(ABC):
    """The expressions of a program that differ by rank, as far as its variables are known to.

    Nothing is known at first, not even that loaders are divided: then no expression differs.

    Args:
        flow: of the program.
        loaders: those of which each rank gets a share.
        modules: those that train on them: their running statistics differ.
        agreed: the conditions, by identity, that rank 0 decides for all.
        clocks: the functions of libraries that return the time, or what the system draws.
    """

    def __init__(
        self, flow: Flow, loaders: Values, modules: Values, agreed: Collection[int], clocks: Collection[str]
    ) -> None:
        self.flow = flow
        self._loaders = loaders
        self._modules = modules
        self._agreed = agreed
        self._clocks = clocks
        self._engine_modules = {value.key for value in modules}
        self._options = flow.once(Options)
        self.attributes = flow.once(ObjectAttributes)
        self._body_names = flow.once(_body_names)
        self._jumps = flow.once(_jumps)
        self._properties = properties_by_name(flow)
        self._held: dict[int, tuple[cst.CSTNode, Values]] = {}  # the loaders that expressions may be
        self._none_tests = NoneTests(self, flow)
        self._known: set[Variable] = set()
        self._readers: dict[Read, set[int]] = {}
        self._reader: int | None = None
        self._answers: dict[int, tuple[cst.CSTNode, bool]] = {}  # with the nodes, which keeps their ids

    def are_known(self, *variables: Variable) -> bool:
        """Return whether one of these variables is known to differ."""
        if not self._known.isdisjoint(variables):
            return True
        self.read(variables)
        return False

    def is_known(self, variable: Variable) -> bool:
        """Return whether a variable is known to differ in some call of its function."""
        return variable in self._known

    def read(self, variables: Iterable[Read]) -> None:
        """Have the node that is looked at be looked at again once one of these variables is known to differ."""
        if self._reader is not None:
            for variable in variables:
                self._readers.setdefault(variable, set()).add(self._reader)

    @abstractmethod
    def differs_in(self, call: cst.Call, result: Variable, file: SourceFile) -> bool:
        """Return whether what a function returns, or an item of that, may differ in a call."""

    def differs(self, node: cst.CSTNode, file: SourceFile) -> bool:
        """Return whether an expression may have another value on another rank."""
        if self._reader is not None:
            return self._find_difference(node, file)
        if id(node) not in self._answers:
            self._answers[id(node)] = node, self._find_difference(node, file)
        return self._answers[id(node)][1]

    def _find_difference(self, node: cst.CSTNode, file: SourceFile) -> bool:
        if type(node) is cst.Name:  # as in dotted()
            owner, name = self._read(node, file)
            return self.are_known((owner, name), (owner, f"{name}[]")) or self.is_share(node, file)
        if type(node) is cst.Attribute:
            return self._attribute_differs(node, "", file)
        if type(node) is cst.Call:
            return self._call_differs(node, file)
        if type(node) is cst.Subscript and (key := literal_key(node)) is not None:
            if isinstance(key[0], cst.Attribute):
                return self.is_share(node, file) or self._attribute_differs(key[0], key[1], file)
            owner, name = self._read(key[0], file)
            return self.are_known((owner, name), (owner, f"{name}[{key[1]}]")) or self.is_share(node, file)
        if isinstance(node, (cst.GeneratorExp, cst.ListComp)):  # as many items on each rank, as len() has them
            return any(self.differs(part, file) for part in (node.elt, *_filters(node.for_in)))
        if type(node) is cst.Lambda and node.params.children:  # whose names may be those of other variables
            return False
        if type(node) is cst.Comparison and self._asks_for_loader(node, file):
            return False
        found = any(self.differs(child, file) for child in children(node))
        return found and not (type(node) is cst.Comparison and self._none_tests.is_shared(node, file))

    def _attribute_differs(self, node: cst.Attribute, key: str, file: SourceFile) -> bool:
        """Return whether an attribute may differ, or the item of it that has a key; any item where that is empty."""
        if node.attr.value in _SAME or self.is_of_library(node, file) or self._options.holds(node, file):
            return False
        if is_data(node):
            return self.differs(node.value, file)
        if is_foreign_gradient(node, file, self.flow, self._engine_modules) and self.are_known(SHARE):
            return True
        own = self._properties.get(node.attr.value, ())
        computed = ((id(function), "return") for _, function in own)
        held = self.attributes.read(node, file)
        items = ((owner, f"{name}[{key}]") for owner, name in held)
        known = self.are_known(*held, *items, *computed)
        return known or self.is_share(node, file) or self.differs(node.value, file)

    def is_share(self, node: cst.BaseExpression, file: SourceFile) -> bool:
        """Return whether an expression is a loader of which each rank gets a share."""
        if id(node) not in self._held:  # asked for anew in each context of a call
            self._held[id(node)] = node, of_kind(self.flow.values(node, file), Kind.LOADER)
        return self.are_shares(self._held[id(node)][1])

    def are_shares(self, values: Values) -> bool:
        """Return whether one of these is a loader of shares, or what a call of a function that makes one returns."""
        may_be_one, found = self.flow.copies.may_be_one, of_kind(values, Kind.LOADER)
        is_known = bool(found) and self.are_known(SHARE)
        return is_known and any(may_be_one(value, loader) for value in found for loader in self._loaders)

    def is_of_library(self, node: cst.Attribute, file: SourceFile) -> bool:
        """Return whether an attribute is a name of a library, such as ``np.sum``, and not of an object."""
        return are_all(self.flow.values(node, file), Kind.EXTERNAL)

    def _asks_for_loader(self, node: cst.Comparison, file: SourceFile) -> bool:
        """Return whether an expression asks whether there is a loader, or a gradient: on each rank, or on none."""
        is_none = any(dotted(target.comparator) == "None" for target in node.comparisons)
        is_gradient = isinstance(node.left, cst.Attribute) and node.left.attr.value == "grad"
        return is_none and len(node.comparisons) == 1 and (is_gradient or self.is_share(node.left, file))

    def _call_differs(self, call: cst.Call, file: SourceFile) -> bool:
        if dotted(call.func) in _SAME_CALLS:
            return False
        name = named_attribute(call, "getattr")
        if name is not None and self.are_known(self.attributes.read_by_name(name)):
            return True
        if self.is_share(call, file):
            return True
        callees = self.flow.values(call.func, file)
        clocks = [c.name for c in callees if c.kind is Kind.EXTERNAL and c.name in self._clocks]
        is_clock = any(name not in CLOCKS or not _is_in_text(call, file) for name in clocks)
        if (is_clock and self.are_known(PROCESS)) or callees & self._modules:
            return True
        self.read(callees)
        own = self.functions_of(call, file)
        if own:
            return any(self.differs_in(call, (key, "return"), file) for key in own)
        if any(c.kind is Kind.CLASS for c in callees):
            return False
        called = call.func.value if _is_builtin_method(call.func) else call.func
        return any(self.differs(part, file) for part in (called, *(arg.value for arg in call.args)))

    def functions_of(self, call: cst.Call, file: SourceFile) -> list[int]:
        """Return the functions of the program that a call may run, as ``next()`` does that of an object."""
        found = [key for c in self.flow.values(call.func, file) for key in self._function(c.kind, c.key, c.of)]
        if found or dotted(call.func) != "next" or not call.args:
            return found
        drawn = of_kind(self.flow.values(call.args[0].value, file), Kind.INSTANCE)
        methods = (self.flow.classes.method(value.key, "__next__") for value in drawn)
        return [method.key for method in methods if method is not None]

    def _function(self, kind: Kind, key: int, of: int) -> Iterator[int]:
        """Yield the function of the program that runs when a value is called."""
        if kind in (Kind.FUNCTION, Kind.METHOD):
            yield key
        owner, name = (key, "__call__") if kind is Kind.INSTANCE else (of, "forward")
        if kind is Kind.INSTANCE or (kind is Kind.MODULE and of):
            method = self.flow.classes.method(owner, name)
            if method is not None:
                yield method.key

    def depends(self, node: cst.CSTNode, file: SourceFile) -> bool:
        """Return whether a condition that differs decides if a statement runs."""
        found = self.conditions(node, file)
        return any(self.differs(outer.test, file) for outer in found if id(outer) not in self._agreed)

    def conditions(self, node: cst.CSTNode, file: SourceFile) -> Iterator[cst.If | cst.While | cst.IfExp]:
        """Yield the conditions that decide in a function if a statement runs, or one before it leaves."""
        yield from _conditions(node, file)
        yield from self._jumps[id(file)].conditions(node)

    def _read(self, name: cst.Name, file: SourceFile) -> Variable:
        """Return the variable that a name is where it is read: in the body of a loop, that of the loop alone."""
        return next(self.written(name, file))

    def written(self, name: cst.Name, file: SourceFile) -> Iterator[Variable]:
        """Yield the variables that a name is where it is set or changed: in the body of a loop, both.

        Before it is deleted there, it is nothing that other lines know.
        """
        deletion = self._body_names[id(file)].deletion(name)
        if deletion is not None:
            yield id(deletion), name.value
            return
        statement = self._body_names[id(file)].binding(name)
        if statement is not None:
            yield id(statement), name.value
        yield self.flow.scopes(file).variable(name.value, name)


def _is_in_text(clock: cst.Call, file: SourceFile) -> bool:
    """Return whether the time becomes text where it is read: a name, which all ranks have from rank 0."""
    around = file.parent(clock)
    made = file.parent(around) if isinstance(around, cst.Arg) else around
    return isinstance(made, cst.FormattedStringExpression) or (
        isinstance(made, cst.Call) and dotted(made.func) == "str"
    )


def _is_builtin_method(func: cst.BaseExpression) -> TypeGuard[cst.Attribute]:
    """Return whether a call is of a method as dicts, lists and texts have it, rather than of an attribute."""
    return isinstance(func, cst.Attribute) and func.attr.value in _BUILTIN_METHODS


def _body_names(flow: Flow) -> dict[int, BodyNames]:
    return {id(file): BodyNames(file, flow.scopes(file)) for file in flow.files.values()}


def _jumps(flow: Flow) -> dict[int, Jumps]:
    return {id(file): Jumps(file) for file in flow.files.values()}


def _filters(loop: cst.CompFor) -> Iterator[cst.BaseExpression]:
    """Yield the conditions that items of a comprehension meet."""
    yield from (condition.test for condition in loop.ifs)
    if loop.inner_for_in is not None:
        yield from _filters(loop.inner_for_in)


def _conditions(node: cst.CSTNode, file: SourceFile) -> Iterator[cst.If | cst.While | cst.IfExp]:
    for outer in file.ancestors(node):
        if isinstance(outer, cst.FunctionDef):
            return
        if isinstance(outer, (cst.If, cst.While, cst.IfExp)):
            yield outer


def literal_key(node: cst.CSTNode) -> tuple[cst.Name | cst.Attribute, str] | None:
    """Return the variable or attribute, and the key, of an item: of ``state["epoch"]``."""
    if not isinstance(node, cst.Subscript) or not isinstance(node.value, (cst.Name, cst.Attribute)):
        return None
    key = literal_index(node)
    return (node.value, key) if isinstance(key, str) else None


def is_data(node: cst.Attribute) -> bool:
    """Return whether an attribute is the values of a tensor without its graph, and no attribute of another object."""
    return node.attr.value == "data" and dotted(node.value) != "self"


def accessed(node: cst.Subscript | cst.StarredElement) -> cst.BaseExpression | None:
    """Return the table that holds an item where ``table.loc[mask, "end"]`` names a part of it."""
    owner = node.value
    is_accessor = isinstance(owner, cst.Attribute) and owner.attr.value in _ACCESSORS and dotted(owner.value) != "self"
    return owner.value if isinstance(owner, cst.Attribute) and is_accessor else None


def named_attribute(call: cst.Call, function: str) -> str | None:
    """Return the attribute that a call reads or sets by a literal name, as ``setattr(stopper, "stop", True)``."""
    if dotted(call.func) != function or len(call.args) < (3 if function == "setattr" else 2):
        return None
    name = call.args[1].value
    return str(name.evaluated_value) if isinstance(name, cst.SimpleString) else None
