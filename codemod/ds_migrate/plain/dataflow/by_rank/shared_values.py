"""Expressions of which the program shows that they have the same value on all ranks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

import libcst as cst

from ds_migrate.plain.dataflow.branches.pure_operations import (
    ADDS,
    CHANGES,
    LOOKS,
    PARTS_OF_TENSORS,
    PLACES,
    PURE,
    PURE_ON_TENSORS,
    PURE_ON_TEXTS,
)
from ds_migrate.plain.dataflow.by_rank.none_tests import is_none_test
from ds_migrate.plain.dataflow.by_rank.program_arguments import is_arguments, is_command
from ds_migrate.plain.dataflow.containers.iteration import taken_from
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.scopes import names_in
from ds_migrate.plain.dataflow.values import Kind, Value, are_all, of_kind
from ds_migrate.syntax.nodes import (
    called_name,
    dotted,
    indices_of,
    parameter,
    parameters,
    set_values,
    walk,
    without_index,
)
from ds_migrate.syntax.source import SourceFile

_LITERALS = (cst.Integer, cst.Float, cst.SimpleString, cst.ConcatenatedString, cst.Ellipsis)
RANK = re.compile("rank|gpu|device|node|master|main", re.IGNORECASE)  # in names of what differs by rank
Known = Callable[[cst.BaseExpression, SourceFile], bool]
Reached = Callable[[cst.CSTNode, SourceFile], bool]
Binding = tuple[cst.BaseExpression, cst.BaseExpression | None]


def _bindings(_: Flow) -> dict[int, list[Binding]]:
    """Return an empty store of the bindings of scopes, which all values of a program share."""
    return {}


class SharedValues:
    """Values of expressions, and whether they are the same on all ranks.

    Args:
        flow: of the program.
        is_reached_alike: returns whether the conditions around a node hold on all ranks or on none.
        is_common: returns whether another expression has the same value on all ranks, beside those that show it.
        finds_files: whether all ranks find the same files.
    """

    def __init__(self, flow: Flow, is_reached_alike: Reached, is_common: Known | None, finds_files: bool) -> None:
        self._flow = flow
        self._is_reached_alike = is_reached_alike
        self._is_common = is_common or (lambda *_: False)
        self._pure = PURE | LOOKS if finds_files else PURE
        self._bound = flow.once(_bindings)
        self._open: set[object] = set()  # what is being looked into, and may depend on itself

    def is_shared(self, node: cst.BaseExpression, file: SourceFile) -> bool:
        """Return whether an expression has the same value on all ranks."""
        if isinstance(node, _LITERALS) or self._is_common(node, file):
            return True
        if isinstance(node, (cst.Name, cst.Attribute)) and self._flow.is_named(node, file, "sys.argv"):
            return True
        if isinstance(node, cst.Comparison):
            if is_none_test(node) and self._is_optimizer_or_none(node.left, file):
                return True
            return all(self.is_shared(n, file) for n in (node.left, *(c.comparator for c in node.comparisons)))
        if isinstance(node, (cst.BinaryOperation, cst.BooleanOperation)):
            return self.is_shared(node.left, file) and self.is_shared(node.right, file)
        if isinstance(node, cst.UnaryOperation):
            return self.is_shared(node.expression, file)
        if isinstance(node, cst.IfExp):
            return self._are_shared((node.test, node.body, node.orelse), file)
        if isinstance(node, cst.FormattedString):
            parts = [part for part in node.parts if isinstance(part, cst.FormattedStringExpression)]
            return self._are_shared((part.expression for part in parts), file)
        if isinstance(node, (cst.Tuple, cst.List)):
            return all(self.is_shared(element.value, file) for element in node.elements)
        if isinstance(node, (cst.ListComp, cst.GeneratorExp)):
            is_of_common = any(isinstance(n, cst.Attribute) and self._is_common(n, file) for n in walk(node.elt))
            conditions = [test.test for test in node.for_in.ifs]
            return is_of_common and all(self.is_shared(part, file) for part in (node.elt, *conditions))
        if isinstance(node, cst.Dict):
            return all(self.is_shared(element.value, file) for element in node.elements)
        if isinstance(node, cst.Call):
            name = dotted(node.func)
            functions = of_kind(callees := self._flow.values(node.func, file), Kind.FUNCTION)
            if functions:
                return functions == callees and all(map(self._returns_shared, functions))
            if isinstance(node.func, cst.Attribute) and node.func.attr.value in PURE_ON_TENSORS:
                receiver = [] if self._is_of_library(node.func, file) else [node.func.value]
                given = [arg.value for arg in node.args if arg.keyword is None or arg.keyword.value not in PLACES]
                return all(self.is_shared(part, file) for part in (*receiver, *given))
            if (
                isinstance(node.func, cst.Attribute)
                and node.func.attr.value in PURE_ON_TEXTS
                and name not in self._pure
            ):
                return all(self.is_shared(part, file) for part in (node.func.value, *(arg.value for arg in node.args)))
            if name == "len" and node.args and of_kind(self._flow.values(node.args[0].value, file), Kind.LOADER):
                return True
            if name == "vars" and node.args:
                return is_arguments(node.args[0].value, file, self._flow)
            given_ = [arg for arg in node.args if name != "torch.load" or arg is node.args[0]]
            return name in self._pure and all(self.is_shared(arg.value, file) for arg in given_)
        if isinstance(node, cst.Subscript):
            indices = list(indices_of(node))
            is_of_rank = any(isinstance(i, cst.SimpleString) and RANK.search(i.value) for i in indices)
            return not is_of_rank and self._are_shared((node.value, *indices), file)
        if isinstance(node, cst.Name):
            return node.value in ("True", "False", "None") or self._is_shared_name(node, file)
        if isinstance(node, cst.Attribute):
            return self._is_shared_attribute(node, file)
        return False

    def _is_optimizer_or_none(self, node: cst.BaseExpression, file: SourceFile) -> bool:
        """Return whether each call of a function gives its parameter an optimizer, or None: ``save(model, None)``."""
        function = self._flow.scopes(file).function_of_parameter(node)
        if function is None or not isinstance(node, cst.Name):
            return False
        calls = self._flow.callers.of(function)
        default = next((p.default for p in parameters(function) if p.name.value == node.value), None)
        for caller, call in calls:
            arg = self._flow.given(call, function, node.value, caller)
            value = arg.value if arg is not None else default
            is_none = value is not None and dotted(value) == "None"
            if not is_none and not (isinstance(value, cst.Name) and self._is_optimizer(value, caller)):
                return False
        return bool(calls)

    def _is_optimizer(self, name: cst.Name, file: SourceFile) -> bool:
        """Return whether a name is always an optimizer, as far as lines that set it to None would show."""
        others = any(dotted(value) == "None" for value in self._flow.scopes(file).assigned(name))
        return not others and are_all(self._flow.values(name, file), Kind.OPTIMIZER)

    def _is_of_library(self, func: cst.Attribute, file: SourceFile) -> bool:
        """Return whether a call is of a function of torch, math or NumPy, rather than of a tensor's method."""
        return (dotted(func) or "").startswith("torch.") or any(
            value.kind is Kind.EXTERNAL and value.name.startswith(("torch.", "math.", "numpy."))
            for value in self._flow.values(func, file)
        )

    def _is_shared_name(self, node: cst.Name, file: SourceFile) -> bool:
        name, scope = node.value, self._flow.scopes(file).owner(node.value, node)
        if (id(scope), name) in self._open:
            return True
        self._open.add((id(scope), name))
        found: list[bool] = []
        if isinstance(scope, cst.FunctionDef) and (param := parameter(scope, name)) is not None:
            found.append(self._is_shared_parameter(scope, param, file))
        for loop in self._flow.scopes(file).nodes(node, cst.For):
            if name in names_in(loop.target):
                is_counter = self._is_counter(name, loop.target, loop.iter, file)
                found.append(is_counter or self._is_shared_item(name, loop, file))
        for target, value in self._bindings(file, scope):
            named = without_index(target) if isinstance(target, cst.BaseExpression) else target
            is_same = isinstance(named, cst.Name) and named.value == name
            if is_same and self._flow.scopes(file).owner(name, target) is scope:
                found += [self._is_set_to_shared(value, target, file), self._are_shared(indices_of(target), file)]
        found += self._changes_of(name, scope, file)
        self._open.discard((id(scope), name))
        return bool(found) and all(found)

    def _bindings(self, file: SourceFile, scope: cst.CSTNode) -> list[Binding]:
        """Return what assignments set, with its value; None where a tuple is not set to a tuple."""
        if id(scope) not in self._bound:
            lines = file.nodes(cst.Assign, cst.AnnAssign, cst.AugAssign, below=scope)
            self._bound[id(scope)] = [binding for line in lines for binding in set_values(line)]
        return self._bound[id(scope)]

    def _changes_of(self, name: str, scope: cst.CSTNode, file: SourceFile) -> Iterator[bool]:
        """Yield for each call that may change what a name holds whether it does so alike on all ranks."""
        for call in file.nodes(cst.Call, below=scope):
            method = called_name(call)
            is_in_place = method.endswith("_") and method[0] != "_"
            if not (is_in_place or method in ADDS):
                continue
            owner = call.func.value if isinstance(call.func, cst.Attribute) else None
            is_method = isinstance(owner, cst.Name) and owner.value == name
            is_initializer = is_in_place and bool(of_kind(self._flow.values(call.func, file), Kind.EXTERNAL))
            is_given = is_initializer and any(dotted(arg.value) == name for arg in call.args[:1])
            if (is_method or is_given) and self._flow.scopes(file).owner(name, call) is scope:
                is_pure = is_method and (method in ADDS or method in CHANGES)
                is_shared = self._are_shared((arg.value for arg in call.args), file)
                yield is_pure and is_shared and self._is_reached_alike(call, file)

    def _are_shared(self, nodes: Iterable[cst.BaseExpression], file: SourceFile) -> bool:
        return all(self.is_shared(node, file) for node in nodes)

    def _returns_shared(self, function: Value) -> bool:
        """Return whether a function of the program returns the same on all ranks."""
        node, file = self._flow.node(function), self._flow.file(function)
        if (function, "return") in self._open:
            return True
        self._open.add((function, "return"))
        found = [value is not None and self._is_set_to_shared(value, value, file) for value in file.returned(node)]
        self._open.discard((function, "return"))
        return bool(found) and all(found)

    def _is_set_to_shared(self, value: cst.BaseExpression | None, target: cst.CSTNode, file: SourceFile) -> bool:
        return value is not None and self._is_reached_alike(target, file) and self.is_shared(value, file)

    def _is_shared_parameter(self, function: cst.FunctionDef, param: cst.Param, file: SourceFile) -> bool:
        calls = self._flow.callers.of(function)
        for caller, call in calls:
            arg = self._flow.given(call, function, param.name.value, caller)
            value = arg.value if arg is not None else param.default
            if value is None or (arg is not None and arg.star):
                return False
            if not self.is_shared(value, caller if arg is not None else file):
                return False
        return bool(calls) or (is_command(function, self._flow) and RANK.search(param.name.value) is None)

    def _is_shared_attribute(self, node: cst.Attribute, file: SourceFile) -> bool:
        """Return whether an attribute is an argument of the program, or set to what is the same on all ranks."""
        name, is_argument = node.attr.value, is_arguments(node.value, file, self._flow)
        if name == "requires_grad":  # the engines' parameters are the same on all ranks
            return True
        if name == "grad":  # which only averaging makes the same
            return False
        if name in PARTS_OF_TENSORS and not is_argument and self.is_shared(node.value, file):
            return True
        if is_argument and RANK.search(name):
            return False
        variable = self._flow.variable(node, file)
        if (variable, name) in self._open:
            return True
        self._open.add((variable, name))
        found: list[bool] = [is_argument] if is_argument else []
        for other in self._flow.files.values():
            for target, value in self._bindings(other, other.module):
                if isinstance(target, cst.Attribute) and target.attr.value == name:
                    is_same = is_argument or variable in (None, self._flow.variable(target, other))
                    found.append(is_same and self._is_set_to_shared(value, target, other))
                elif isinstance(target, cst.Name) and target.value == name and not other.function(target):
                    owner = other.class_around(target)
                    if owner is not None and variable == self._flow.classes.attribute(id(owner), name):
                        found.append(self._is_set_to_shared(value, target, other))
        self._open.discard((variable, name))
        return bool(found) and all(found)

    def _is_shared_item(self, name: str, loop: cst.For, file: SourceFile) -> bool:
        """Return whether a loop takes a name from what is the same on all ranks: an item, or a key of a dict."""
        if isinstance(loop.iter, cst.Call) and not loop.iter.args and called_name(loop.iter) in ("items", "keys"):
            assert isinstance(loop.iter.func, cst.Attribute)
            return self.is_shared(loop.iter.func.value, file)
        pairs = [(part, container) for part, container in taken_from(loop.target, loop.iter) if name in names_in(part)]
        return bool(pairs) and all(self.is_shared(container, file) for _, container in pairs)

    def _is_counter(self, name: str, target: cst.CSTNode, over: cst.BaseExpression, file: SourceFile) -> bool:
        """Return whether a loop counts with a name: over ``range()``, or as the first of ``enumerate()``."""
        if isinstance(over, cst.Name):
            bars = [
                item.item
                for item in file.nodes(cst.WithItem)
                if item.asname is not None and dotted(item.asname.name) == over.value
                and file.function(item) is file.function(over)
            ]  # fmt: skip
            return bool(bars) and all(self._is_counter(name, target, bar, file) for bar in bars)
        if not isinstance(over, cst.Call):
            return False
        function = dotted(over.func)
        if function in ("tqdm", "tqdm.tqdm") and over.args:
            return self._is_counter(name, target, over.args[0].value, file)
        if function == "enumerate" and isinstance(target, cst.Tuple):
            return dotted(target.elements[0].value) == name
        numbers = [arg for arg in over.args if arg.keyword is None]
        is_range = function in ("range", "trange", "tqdm.trange")
        return is_range and all(self.is_shared(arg.value, file) for arg in numbers)
