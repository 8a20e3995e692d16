"""Writes to what all ranks must hold alike: weights, their gradients, whether they train, the optimizer's state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.scopes import names_in
from ds_migrate.plain.dataflow.values import Kind, Values, of_kind
from ds_migrate.plain.recognition.batches.passed_objects import passed_on
from ds_migrate.syntax.nodes import dotted, indices_of, last_name, targets, walk, without_index
from ds_migrate.syntax.source import SourceFile

_PARAMETERS = frozenset({"parameters", "named_parameters"})
_OF_MODULES = frozenset({"apply", "requires_grad_", "reset_parameters"})
_NO_WRITES = frozenset({"detach_", "requires_grad_", "share_memory_"})
_OF_STATES = frozenset({"clear", "pop", "update", "setdefault"})


@dataclass(frozen=True)
class Write:
    """A write, with what decides which numbers are written, for a weight, and the indices that they are written to."""

    node: cst.CSTNode
    values: tuple[cst.BaseExpression, ...] = ()
    indices: tuple[cst.BaseExpression, ...] = ()


class WeightWrites:
    """The writes of a program to weights, as far as it names them as such.

    Attributes:
        names: those of attributes that hold weights.
    """

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self.names = {"weight", "bias"} | {
            target.attr.value
            for file, node in flow.nodes(cst.Assign, cst.AnnAssign)
            if isinstance(node.value, cst.Call) and last_name(node.value.func) == "Parameter"
            for target in targets(node)
            if isinstance(target, cst.Attribute)
        }

    def of(self, file: SourceFile) -> Iterator[Write]:
        for call in file.nodes(cst.Call):
            if last_name(call.func) == "vector_to_parameters" and call.args:
                yield Write(call, (call.args[0].value,))
            if self._is_write(call, file):
                is_in_place = isinstance(call.func, cst.Attribute) and call.func.attr.value.endswith("_")
                given = call.args[1:] if self._is_init(call, file) else call.args  # the first one is written to
                is_weight = is_in_place and not self._is_gradient(call.func, file)
                yield Write(call, tuple(arg.value for arg in given) if is_weight else ())
        for node in file.nodes(cst.Assign, cst.AugAssign):
            for target in targets(node):
                if isinstance(target, cst.Attribute):
                    yield from _made_anew(node, file)
                if not self._is_written(target, isinstance(node, cst.AugAssign), file):
                    continue
                if self._is_gradient(target, file) or (
                    isinstance(target, cst.Attribute) and target.attr.value != "data"
                ):
                    yield Write(node)
                else:
                    yield Write(node, (node.value,), tuple(indices_of(target)))

    def _is_write(self, call: cst.Call, file: SourceFile) -> bool:
        first = call.args[0].value if call.args else None
        if self._is_init(call, file):
            return first is not None and self.is_weight(first, file)
        if not isinstance(call.func, cst.Attribute):
            return False
        name, owner = call.func.attr.value, call.func.value
        if name in _OF_MODULES:
            return bool(of_kind(self._values(owner, file), Kind.MODULE, Kind.PART)) or self.is_weight(owner, file)
        if name in _OF_STATES:
            return self._is_state(owner, file)
        return name.endswith("_") and name[0] != "_" and name not in _NO_WRITES and self.is_weight(owner, file)

    def _is_init(self, call: cst.Call, file: SourceFile) -> bool:
        """Return whether a call is ``torch.nn.init.normal_(weight)`` or another initializer, which writes in place."""
        values = self._values(call.func, file)
        return any(v.kind is Kind.EXTERNAL and v.name.startswith("torch.nn.init.") for v in values)

    def _is_written(self, target: cst.BaseExpression, is_added: bool, file: SourceFile) -> bool:
        if isinstance(target, cst.Attribute):
            is_kept = target.attr.value in ("data", "grad", "requires_grad")
            return (is_kept and self.is_weight(target.value, file)) or (is_added and self.is_weight(target, file))
        if isinstance(target, cst.Subscript):
            return self.is_weight(target.value, file) or self._is_state(target.value, file)
        return is_added and self.is_weight(target, file)

    def is_weight(self, node: cst.CSTNode, file: SourceFile, is_named: bool = False) -> bool:
        """Return whether an expression is a parameter, its gradient, or a view of one."""
        while isinstance(node, (cst.Subscript, cst.Call, cst.Attribute)):
            if isinstance(node, cst.Attribute):
                if node.attr.value in self.names:
                    return True
                if node.attr.value not in ("data", "grad"):
                    return False
            if isinstance(node, cst.Call):
                name = node.func.attr.value if isinstance(node.func, cst.Attribute) else ""
                if not isinstance(node.func, cst.Attribute) or not (name.endswith("_") or name in ("detach", "view")):
                    return False
                node = node.func
            node = node.value
        if not isinstance(node, cst.Name):
            return False
        scopes = self._flow.scopes(file)
        loops = scopes.nodes(node, cst.For, cst.CompFor)
        if any(node.value in names_in(loop.target) and self._has_parameters(loop.iter, file) for loop in loops):
            return True
        assigned = [
            line.value for line in scopes.nodes(node, cst.Assign) if any(dotted(t) == node.value for t in targets(line))
        ]
        return not is_named and any(self.is_weight(value, file, is_named=True) for value in assigned)

    def is_gradient(self, node: cst.CSTNode, file: SourceFile) -> bool:
        """Return whether an expression is the gradient of a parameter, as it is."""
        while isinstance(node, cst.Attribute) and node.attr.value == "data":
            node = node.value
        return isinstance(node, cst.Attribute) and node.attr.value == "grad" and self.is_weight(node.value, file)

    def _is_gradient(self, node: cst.BaseExpression, file: SourceFile) -> bool:
        """Return whether an expression is made of a gradient, or of a name that is set to one."""
        if any(isinstance(n, cst.Attribute) and n.attr.value == "grad" for n in walk(node)):
            return True
        root = node
        while isinstance(root, (cst.Subscript, cst.Attribute)):
            root = root.value
        made = self._flow.scopes(file).assigned(root) if isinstance(root, cst.Name) else ()
        return bool(made) and all(self.is_gradient(value, file) for value in made)

    def _has_parameters(self, over: cst.BaseExpression, file: SourceFile, depth: int = 4) -> bool:
        """Return whether a loop runs over parameters of modules, or of the groups of an optimizer.

        A list of them may be an attribute, or what calls give for a parameter: ``self.params = list(params)``.
        """
        for node in walk(over):
            if isinstance(node, cst.Attribute) and node.attr.value in _PARAMETERS:
                return True
            if isinstance(node, cst.SimpleString) and node.evaluated_value == "params":
                return True
        listed = without_list(over)
        if depth == 0 or not isinstance(listed, (cst.Name, cst.Attribute)):
            return False
        made = [(file, value) for value in self._flow.scopes(file).assigned(listed)]
        given = passed_on(listed, file, self._flow) if isinstance(listed, cst.Name) else []
        return any(self._has_parameters(value, at, depth - 1) for at, value in (*made, *given))

    def _is_state(self, node: cst.BaseExpression, file: SourceFile) -> bool:
        """Return whether an expression is the state of an optimizer, or a part of it."""
        node = without_index(node)
        if not isinstance(node, cst.Attribute) or node.attr.value != "state":
            return False
        return bool(of_kind(self._values(node.value, file), Kind.OPTIMIZER))

    def _values(self, node: cst.CSTNode, file: SourceFile) -> Values:
        return self._flow.values(node, file)


def without_list(node: cst.BaseExpression) -> cst.BaseExpression:
    """Return what ``list()`` or ``tuple()`` is made of; other expressions as they are."""
    is_list = isinstance(node, cst.Call) and dotted(node.func) in ("list", "tuple") and len(node.args) == 1
    return node.args[0].value if isinstance(node, cst.Call) and is_list else node


def _made_anew(node: cst.Assign | cst.AugAssign, file: SourceFile) -> Iterator[Write]:
    """Yield the making of a parameter outside of ``__init__``, as of the first batch."""
    function, made = file.function(node), node.value
    if function is None or function.name.value == "__init__":
        return
    if isinstance(made, cst.Call) and last_name(made.func) == "Parameter" and made.args:
        yield Write(node, (made.args[0].value,))
