"""Conditions that hold on all ranks or on none: what is under them may take part of every rank."""

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
from ds_migrate.plain.dataflow.containers.iteration import taken_from
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.scopes import names_in
from ds_migrate.plain.dataflow.values import Kind, Value, of_kind
from ds_migrate.syntax.nodes import (
    called_name,
    dotted,
    indices_of,
    last_name,
    parameters,
    set_values,
    walk,
    without_index,
)
from ds_migrate.syntax.source import SourceFile

_LITERALS = (cst.Integer, cst.Float, cst.SimpleString, cst.ConcatenatedString, cst.Ellipsis)
FIRST = "rank 0 first"  # marks a statement that ranks run one after the other
_PARSERS = frozenset({"parse_args", "parse_known_args"})
_FLAGS = frozenset({"absl.flags.FLAGS"})
_RANK = re.compile("rank|gpu|device|node|master|main", re.IGNORECASE)
Known = Callable[[cst.BaseExpression, SourceFile], bool]
Branch = tuple[SourceFile, cst.If | cst.While]
Binding = tuple[cst.BaseExpression, cst.BaseExpression | None]


def runs_in_turn(node: cst.CSTNode, file: SourceFile) -> bool:
    """Return whether rank 0 runs a node first, and the other ranks one after the other."""
    return any(file.edits.is_done(outer, FIRST) for outer in (node, *file.ancestors(node)))


class RankConditions:
    """Conditions around a place, and whether all ranks reach it, as far as the program shows.

    Args:
        flow: of the program.
        callers: of its functions.
        is_common: returns whether another expression has the same value on all ranks, beside those that show it.
        finds_files: whether all ranks find the same files; not where one may just have made some.
    """

    def __init__(self, flow: Flow, is_common: Known | None = None, finds_files: bool = True) -> None:
        self._flow = flow
        self._is_common = is_common or (lambda *_: False)
        self._pure = PURE | LOOKS if finds_files else PURE
        self._bound = flow.once("bindings of scopes", dict[int, list[Binding]])
        self._open: set[object] = set()  # what is being looked into, and may depend on itself

    def reach_all(self, node: cst.CSTNode, file: SourceFile, undecided: list[Branch] | None = None) -> bool:
        """Return whether all ranks reach a node as often: no condition around it, or its callers, may differ.

        ``undecided`` takes the statements whose conditions may differ, and which are then assumed to be agreed on.
        """
        function = file.function(node)
        jumps = file.nodes(cst.Return, cst.Break, cst.Continue, cst.Raise, below=function or file.module)
        before = [j for j in jumps if file.function(j) is function and file.position(j) < file.position(node)]
        before = [j for j in before if _may_skip(j, node, file)]
        if not all(self._is_under_shared_conditions(place, file, undecided) for place in (node, *before)):
            return False
        if function is None or id(function) in self._open:
            return True
        self._open.add(id(function))
        calls = self._flow.callers.of(function)
        is_reached = bool(calls) or self._is_command(function)
        result = is_reached and all(self.reach_all(call, caller, undecided) for caller, call in calls)
        self._open.discard(id(function))
        return result

    def undecided(self, node: cst.CSTNode, file: SourceFile) -> list[Branch] | None:
        """Return the statements whose conditions rank 0 must decide, for all ranks to reach a node as often.

        None where that is not enough: a condition asks for a rank, or is not that of an ``if`` or ``while``.
        """
        found: list[Branch] = []
        reaches = self.reach_all(node, file, found)
        return found if reaches and not any(_asks_for_rank(statement.test) for _, statement in found) else None

    def _is_under_shared_conditions(
        self, node: cst.CSTNode, file: SourceFile, undecided: list[Branch] | None = None
    ) -> bool:
        """Return whether the conditions around a node, in its function, hold on all ranks or on none."""
        if runs_in_turn(node, file):
            return False
        inner: cst.CSTNode = node
        for outer in file.ancestors(node):
            if isinstance(outer, cst.FunctionDef):
                return True
            if isinstance(outer, (cst.If, cst.While, cst.IfExp)) and inner is not outer.test:
                is_entry = isinstance(outer, cst.If) and _asks_for_name(outer.test)
                if not is_entry and not self.is_shared(outer.test, file):
                    if undecided is None or isinstance(outer, cst.IfExp):
                        return False
                    undecided.append((file, outer))
            if isinstance(outer, (cst.ExceptHandler, cst.Lambda, cst.BooleanOperation, cst.BaseComp)):
                return False
            inner = outer
        return True

    def is_shared(self, node: cst.BaseExpression, file: SourceFile) -> bool:
        """Return whether an expression has the same value on all ranks."""
        if isinstance(node, _LITERALS) or self._is_common(node, file):
            return True
        if isinstance(node, (cst.Name, cst.Attribute)) and self._flow.is_named(node, file, "sys.argv"):
            return True
        if isinstance(node, cst.Comparison):
            return all(self.is_shared(n, file) for n in (node.left, *(c.comparator for c in node.comparisons)))
        if isinstance(node, (cst.BinaryOperation, cst.BooleanOperation)):
            return self.is_shared(node.left, file) and self.is_shared(node.right, file)
        if isinstance(node, cst.UnaryOperation):
            return self.is_shared(node.expression, file)
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
            given_ = [arg for arg in node.args if name != "torch.load" or arg is node.args[0]]
            return name in self._pure and all(self.is_shared(arg.value, file) for arg in given_)
        if isinstance(node, cst.Subscript):
            return self.is_shared(node.value, file) and all(self.is_shared(index, file) for index in indices_of(node))
        if isinstance(node, cst.Name):
            return node.value in ("True", "False", "None") or self._is_shared_name(node, file)
        if isinstance(node, cst.Attribute):
            return self._is_shared_attribute(node, file)
        return False

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
        if isinstance(scope, cst.FunctionDef):
            found += [self._is_shared_parameter(scope, p, file) for p in parameters(scope) if p.name.value == name]
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
                yield is_pure and is_shared and self._is_under_shared_conditions(call, file)

    def _are_shared(self, nodes: Iterable[cst.BaseExpression], file: SourceFile) -> bool:
        return all(self.is_shared(node, file) for node in nodes)

    def _returns_shared(self, function: Value) -> bool:
        """Return whether a function of the program returns the same on all ranks."""
        node, file = self._flow.node(function), self._flow.file(function)
        if (function, "return") in self._open:
            return True
        self._open.add((function, "return"))
        returned = [line for line in file.nodes(cst.Return, below=node) if file.function(line) is node]
        found = [line.value is not None and self._is_set_to_shared(line.value, line, file) for line in returned]
        self._open.discard((function, "return"))
        return bool(found) and all(found)

    def _is_set_to_shared(self, value: cst.BaseExpression | None, target: cst.CSTNode, file: SourceFile) -> bool:
        return value is not None and self._is_under_shared_conditions(target, file) and self.is_shared(value, file)

    def _is_shared_parameter(self, function: cst.FunctionDef, param: cst.Param, file: SourceFile) -> bool:
        calls = self._flow.callers.of(function)
        for caller, call in calls:
            arg = self._flow.given(call, function, param.name.value, caller)
            value = arg.value if arg is not None else param.default
            if value is None or (arg is not None and arg.star):
                return False
            if not self.is_shared(value, caller if arg is not None else file):
                return False
        return bool(calls) or (self._is_command(function) and _RANK.search(param.name.value) is None)

    def _is_command(self, function: cst.FunctionDef) -> bool:
        """Return whether a program begins by a function: an installed one, or one such as ``@cli.command()`` makes."""
        makers = (getattr(d.decorator, "func", d.decorator) for d in function.decorators)
        return any(last_name(maker) == "command" for maker in makers) or self._flow.is_command(function)

    def _is_shared_attribute(self, node: cst.Attribute, file: SourceFile) -> bool:
        """Return whether an attribute is an argument of the program, or set to what is the same on all ranks."""
        name, is_argument = node.attr.value, self._is_arguments(node.value, file)
        if name == "requires_grad":  # the engines' parameters are the same on all ranks
            return True
        if name in PARTS_OF_TENSORS and not is_argument and self.is_shared(node.value, file):
            return True
        if is_argument and _RANK.search(name):
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
        self._open.discard((variable, name))
        return bool(found) and all(found)

    def _is_arguments(self, node: cst.BaseExpression, file: SourceFile) -> bool:
        """Return whether an expression is the result of ``parse_args()``, as it is or handed on."""
        if isinstance(node, cst.Call):
            return isinstance(node.func, cst.Attribute) and node.func.attr.value in _PARSERS
        if not isinstance(node, cst.Name):
            return False
        if any(value.name in _FLAGS for value in self._flow.values(node, file)):
            return True
        makers = [self._flow.node(v) for v in self._flow.values(node, file) if v.kind is Kind.OBJECT]
        return bool(makers) and all(isinstance(m, cst.Call) and self._is_arguments(m, file) for m in makers)

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


def _may_skip(jump: cst.CSTNode, node: cst.CSTNode, file: SourceFile) -> bool:
    """Return whether a jump can lead past a node behind it: one out of a loop does so where the loop holds the node."""
    if not isinstance(jump, (cst.Break, cst.Continue)):
        return True
    loop = next((outer for outer in file.ancestors(jump) if isinstance(outer, (cst.For, cst.While))), None)
    return loop is None or any(outer is loop for outer in file.ancestors(node))


def _asks_for_name(test: cst.BaseExpression) -> bool:
    """Return whether a test is the one of ``if __name__ == "__main__"``."""
    return isinstance(test, cst.Comparison) and dotted(test.left) == "__name__"


def _asks_for_rank(test: cst.BaseExpression) -> bool:
    return any(isinstance(n, cst.Name) and _RANK.search(n.value) is not None for n in walk(test))
