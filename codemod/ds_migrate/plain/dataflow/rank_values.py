"""The values that differ by rank once each rank trains on a share of the data: batches, losses, what is made of them.

The order of statements is ignored, as it is in the flow of values: a variable that differs anywhere differs everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, Values, Variable, of_kind
from ds_migrate.syntax.nodes import children, dotted, targets
from ds_migrate.syntax.source import SourceFile

_ROUNDS = 12
# Attributes and methods that are the same on each rank: shares have as many batches, of as many samples.
_SAME = frozenset({"shape", "device", "dtype", "ndim", "size", "dim", "numel", "batch_size", "dataset", "__class__"})
_SAME_CALLS = frozenset({"len", "isinstance", "type", "hasattr", "callable", "id"})
# These have separate state, which is followed elsewhere or equal on each rank.
_OWN_STATE = (Kind.INSTANCE, Kind.SCHEDULE, Kind.SCALER, Kind.OPTIMIZER, Kind.MODULE)
_CLOCKS = frozenset(
    {"time.time", "time.perf_counter", "time.monotonic", "time.process_time", "datetime.datetime.now"}
)  # fmt: skip


class RankValues:
    """What differs by rank in a program.

    Args:
        flow: of the program.
        loaders: those of which each rank gets a share.
        modules: those that train on them: their running statistics differ.
    """

    def __init__(self, flow: Flow, loaders: Values, modules: Values) -> None:
        self._flow = flow
        self.loaders = loaders
        self._modules = modules
        self._known: set[Variable] = set()
        for _ in range(_ROUNDS):
            before = len(self._known)
            for file in flow.files.values():
                self._known.update(self._found(file))
            if len(self._known) == before:
                break

    def differs(self, node: cst.CSTNode, file: SourceFile) -> bool:
        """Return whether an expression may have another value on another rank."""
        if isinstance(node, cst.Name):
            return self._flow.scopes(file).variable(node.value, node) in self._known or self._is_share(node, file)
        if isinstance(node, cst.Attribute):
            if node.attr.value in _SAME:
                return False
            return _attribute(node) in self._known or self._is_share(node, file) or self.differs(node.value, file)
        if isinstance(node, cst.Call):
            return self._call_differs(node, file)
        if isinstance(node, cst.Lambda) or (isinstance(node, cst.Comparison) and self._asks_for_loader(node, file)):
            return False
        return any(self.differs(child, file) for child in children(node))

    def _is_share(self, node: cst.BaseExpression, file: SourceFile) -> bool:
        return bool(self._flow.values(node, file) & self.loaders)

    def _asks_for_loader(self, node: cst.Comparison, file: SourceFile) -> bool:
        """Return whether an expression asks whether there is a loader: there is one on each rank, or on none."""
        is_none = any(dotted(target.comparator) == "None" for target in node.comparisons)
        return is_none and len(node.comparisons) == 1 and self._is_share(node.left, file)

    def _call_differs(self, call: cst.Call, file: SourceFile) -> bool:
        if dotted(call.func) in _SAME_CALLS:
            return False
        callees = self._flow.values(call.func, file)
        if any(c.kind is Kind.EXTERNAL and c.name in _CLOCKS for c in callees) or callees & self._modules:
            return True
        own = [key for c in callees for key in self._function(c.kind, c.key, c.of)]
        if own:
            return any((key, "return") in self._known for key in own)
        if any(c.kind is Kind.CLASS for c in callees):
            return False
        return any(self.differs(part, file) for part in (call.func, *(arg.value for arg in call.args)))

    def _function(self, kind: Kind, key: int, of: int) -> Iterator[int]:
        """Yield the function of the program that runs when a value is called."""
        if kind in (Kind.FUNCTION, Kind.METHOD):
            yield key
        owner, name = (key, "__call__") if kind is Kind.INSTANCE else (of, "forward")
        if kind is Kind.INSTANCE or (kind is Kind.MODULE and of):
            method = self._flow.classes.method(owner, name)
            if method is not None:
                yield method.key

    def _found(self, file: SourceFile) -> Iterator[Variable]:
        """Yield the variables to which a file gives what differs."""
        for node in file.nodes(cst.Assign, cst.AnnAssign, cst.AugAssign, cst.NamedExpr):
            if node.value is not None and (self.differs(node.value, file) or self._depends(node, file)):
                for target in targets(node) if not isinstance(node, cst.NamedExpr) else [node.target]:
                    yield from self._variables(target, file)
        for node in file.nodes(cst.For, cst.CompFor):
            yield from self._of_loop(node.target, node.iter, file)
        for node in file.nodes(cst.WithItem):
            if node.asname is not None and self.differs(node.item, file):
                yield from self._variables(node.asname.name, file)
        for node in file.nodes(cst.Return):
            function = file.function(node)
            if node.value is None or function is None:
                continue
            if self.differs(node.value, file) or self._depends(node, file):
                yield id(function), "return"
        for call in file.nodes(cst.Call):
            passed = list(self._flow.passed(call, file))
            yield from (variable for variable, given in passed if self.differs(given, file))
            if not passed and any(self.differs(arg.value, file) for arg in call.args):
                yield from self._keepers(call, file)

    def _keepers(self, call: cst.Call, file: SourceFile) -> Iterator[Variable]:
        """Yield the receiver of an unknown method, which may keep its arguments: ``losses.append(loss)``."""
        if isinstance(call.func, cst.Attribute) and not of_kind(self._flow.values(call.func.value, file), *_OWN_STATE):
            yield from self._variables(call.func.value, file)

    def _of_loop(self, target: cst.CSTNode, over: cst.BaseExpression, file: SourceFile) -> Iterator[Variable]:
        if not self.differs(over, file):
            return
        counts = isinstance(over, cst.Call) and dotted(over.func) == "enumerate"
        if counts and isinstance(target, cst.Tuple) and len(target.elements) == 2:
            target = target.elements[1].value
        yield from self._variables(target, file)

    def _variables(self, target: cst.CSTNode, file: SourceFile) -> Iterator[Variable]:
        if isinstance(target, cst.Name):
            if not of_kind(self._flow.values(target, file), Kind.EXTERNAL, Kind.FILE, Kind.CLASS, Kind.FUNCTION):
                yield self._flow.scopes(file).variable(target.value, target)
        elif isinstance(target, cst.Attribute):
            yield _attribute(target)
        elif isinstance(target, (cst.Subscript, cst.StarredElement)):
            yield from self._variables(target.value, file)
        elif isinstance(target, (cst.Tuple, cst.List)):
            for element in target.elements:
                yield from self._variables(element.value, file)

    def _depends(self, node: cst.CSTNode, file: SourceFile) -> bool:
        """Return whether a condition that differs decides if a statement runs."""
        return any(self.differs(outer.test, file) for outer in _conditions(node, file))


def _conditions(node: cst.CSTNode, file: SourceFile) -> Iterator[cst.If | cst.While | cst.IfExp]:
    for outer in file.ancestors(node):
        if isinstance(outer, cst.FunctionDef):
            return
        if isinstance(outer, (cst.If, cst.While, cst.IfExp)):
            yield outer


def _attribute(node: cst.Attribute) -> Variable:
    """Return an attribute of any object as a variable: objects are not told apart."""
    return 0, f".{node.attr.value}"
