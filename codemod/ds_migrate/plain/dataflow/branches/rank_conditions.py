"""Conditions that hold on all ranks or on none: what is under them may take part of every rank."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import libcst as cst

from ds_migrate.plain.dataflow.calls.callers import Callers
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.scopes import names_in
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.syntax.nodes import dotted, parameters, set_values, walk
from ds_migrate.syntax.source import SourceFile

_LITERALS = (cst.Integer, cst.Float, cst.SimpleString, cst.ConcatenatedString)
# Calls that return the same on all ranks for the same arguments: all ranks read the same files, on the same machines.
_PURE = frozenset({
    "len", "int", "float", "bool", "min", "max", "round", "str", "range", "trange", "tqdm.trange", "torch.load",
    "os.path.join", "torch.cuda.is_available", "torch.accelerator.is_available", "torch.backends.mps.is_available",
    "dist.get_world_size", "torch.distributed.get_world_size", "get_world_size",
})  # fmt: skip
_LOOKS = frozenset({"os.path.isfile", "os.path.exists", "os.path.isdir"})
# Methods and functions of torch that return the same for the same tensors.
_PURE_ON_TENSORS = frozenset({
    "abs", "clamp", "clone", "detach", "float", "item", "max", "mean", "min", "norm", "pow", "sqrt", "square", "stack",
    "sum",
})  # fmt: skip
# Methods of texts that return the same for the same texts.
_PURE_ON_TEXTS = frozenset({"format", "join", "lower", "replace", "split", "strip", "upper"})
FIRST = "rank 0 first"  # marks a statement that ranks run one after the other
_PARSERS = frozenset({"parse_args", "parse_known_args"})
_FLAGS = frozenset({"absl.flags.FLAGS"})
_RANK = re.compile("rank|gpu|device|node|master|main", re.IGNORECASE)
Known = Callable[[cst.BaseExpression, SourceFile], bool]
Branch = tuple[SourceFile, cst.If | cst.While]


class RankConditions:
    """Conditions around a place, and whether all ranks reach it, as far as the program shows.

    Args:
        flow: of the program.
        callers: of its functions.
        is_common: returns whether another expression has the same value on all ranks, beside those that show it.
        finds_files: whether all ranks find the same files; not where one may just have made some.
    """

    def __init__(self, flow: Flow, callers: Callers, is_common: Known | None = None, finds_files: bool = True) -> None:
        self._flow = flow
        self._callers = callers
        self._is_common = is_common or (lambda *_: False)
        self._pure = _PURE | _LOOKS if finds_files else _PURE
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
        calls = self._callers.of(function)
        result = bool(calls) and all(self.reach_all(call, caller, undecided) for caller, call in calls)
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
        if any(file.edits.is_done(outer, FIRST) for outer in (node, *file.ancestors(node))):
            return False
        inner: cst.CSTNode = node
        for outer in file.ancestors(node):
            if isinstance(outer, cst.FunctionDef):
                return True
            if isinstance(outer, (cst.If, cst.While, cst.IfExp)) and inner is not outer.test:
                is_entry = isinstance(outer, cst.If) and asks_for_name(outer.test)
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
        if isinstance(node, cst.Call):
            name = dotted(node.func)
            if isinstance(node.func, cst.Attribute) and node.func.attr.value in _PURE_ON_TENSORS:
                receiver = [] if name is not None and name.startswith("torch.") else [node.func.value]
                return all(self.is_shared(part, file) for part in (*receiver, *(arg.value for arg in node.args)))
            if (
                isinstance(node.func, cst.Attribute)
                and node.func.attr.value in _PURE_ON_TEXTS
                and name not in self._pure
            ):
                return all(self.is_shared(part, file) for part in (node.func.value, *(arg.value for arg in node.args)))
            if name == "len" and node.args and of_kind(self._flow.values(node.args[0].value, file), Kind.LOADER):
                return True
            given_ = [arg for arg in node.args if name != "torch.load" or arg is node.args[0]]
            return name in self._pure and all(self.is_shared(arg.value, file) for arg in given_)
        if isinstance(node, cst.Subscript):
            return self.is_shared(node.value, file)
        if isinstance(node, cst.Name):
            return node.value in ("True", "False", "None") or self._is_shared_name(node, file)
        if isinstance(node, cst.Attribute):
            return self._is_shared_attribute(node, file)
        return False

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
                found.append(self._is_counter(name, loop.target, loop.iter, file))
        for target, value in _bindings(file, scope):
            is_same = isinstance(target, cst.Name) and target.value == name
            if is_same and self._flow.scopes(file).owner(name, target) is scope:
                found.append(self._is_set_to_shared(value, target, file))
        self._open.discard((id(scope), name))
        return bool(found) and all(found)

    def _is_set_to_shared(self, value: cst.BaseExpression | None, target: cst.CSTNode, file: SourceFile) -> bool:
        return value is not None and self._is_under_shared_conditions(target, file) and self.is_shared(value, file)

    def _is_shared_parameter(self, function: cst.FunctionDef, param: cst.Param, file: SourceFile) -> bool:
        calls = self._callers.of(function)
        for caller, call in calls:
            arg = self._flow.given(call, function, param.name.value, caller)
            value = arg.value if arg is not None else param.default
            if value is None or (arg is not None and arg.star):
                return False
            if not self.is_shared(value, caller if arg is not None else file):
                return False
        return bool(calls)

    def _is_shared_attribute(self, node: cst.Attribute, file: SourceFile) -> bool:
        """Return whether an attribute is an argument of the program, or set to what is the same on all ranks."""
        name, is_argument = node.attr.value, self._is_arguments(node.value, file)
        if name == "requires_grad":  # the engines' parameters are the same on all ranks
            return True
        if is_argument and _RANK.search(name):
            return False
        variable = self._flow.variable(node, file)
        if (variable, name) in self._open:
            return True
        self._open.add((variable, name))
        found: list[bool] = [is_argument] if is_argument else []
        for other in self._flow.files.values():
            for target, value in _bindings(other, other.module):
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

    def _is_counter(self, name: str, target: cst.CSTNode, over: cst.BaseExpression, file: SourceFile) -> bool:
        """Return whether a loop counts with a name: over ``range()``, or as the first of ``enumerate()``."""
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


def _bindings(file: SourceFile, scope: cst.CSTNode) -> Iterator[tuple[cst.CSTNode, cst.BaseExpression | None]]:
    """Yield what assignments set, with its value; None where a tuple is not set to a tuple."""
    for line in file.nodes(cst.Assign, cst.AnnAssign, cst.AugAssign, below=scope):
        yield from set_values(line)


def asks_for_name(test: cst.BaseExpression) -> bool:
    """Return whether a test is the one of ``if __name__ == "__main__"``."""
    return isinstance(test, cst.Comparison) and dotted(test.left) == "__name__"


def _asks_for_rank(test: cst.BaseExpression) -> bool:
    return any(isinstance(n, cst.Name) and _RANK.search(n.value) is not None for n in walk(test))
