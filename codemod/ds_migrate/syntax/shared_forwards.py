"""Backward passes through a forward pass behind which another backward pass has run already.

DistributedDataParallel averages gradients in the first backward pass behind one of its forward passes, and in no other:
in ``a = model(x); b = model(y); a.backward(); b.backward()`` each rank keeps what the second one adds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import libcst as cst

from ds_migrate.syntax.branches import parting
from ds_migrate.syntax.nodes import code, dotted, is_literal, set_values, walk, without_index
from ds_migrate.syntax.source import SourceFile

_CUTS = frozenset(["detach", "item", "tolist", "numpy"])
_GROWING = frozenset(["append", "appendleft", "extend", "insert", "add", "update", "setdefault"])
_BLOCKS = (cst.If, cst.For, cst.While, cst.Try, cst.ExceptHandler, cst.Else)


@dataclass(frozen=True, eq=False)
class BackwardPass:
    """A call that runs a backward pass, its loss and its ``retain_graph``; None for what it is not given."""

    call: cst.Call
    loss: cst.BaseExpression | None
    retains_graph: cst.BaseExpression | None


@dataclass(frozen=True)
class _Binding:
    """A statement that binds a name to a value, or a call that does; ``is_more``: beside what the name held before."""

    node: cst.CSTNode
    name: str | None
    value: cst.BaseExpression
    is_more: bool = False


@dataclass(frozen=True)
class SharedForwards:
    """The backward passes of one function.

    Attributes:
        file: that of the function.
        function: the function, or the module.
        passes: its backward passes, in source order.
        models_run: returns the models, by any key, whose wrapper a call runs forward.
        runs_once: returns whether a call is one forward pass, and not a function with several.
    """

    file: SourceFile
    function: cst.CSTNode
    passes: Sequence[BackwardPass]
    models_run: Callable[[cst.Call], frozenset[object]]
    runs_once: Callable[[cst.Call], bool]

    def unaveraged(self) -> Iterator[BackwardPass]:
        """Yield the passes whose gradients DistributedDataParallel does not average."""
        for index, later in enumerate(self.passes):
            if self._follows_itself(later) or any(self._follows(later, first) for first in self.passes[:index]):
                yield later

    def _follows(self, later: BackwardPass, first: BackwardPass) -> bool:
        """Return whether a pass goes through a forward pass that one before it went through."""
        start, end = self.file.position(first.call), self.file.position(later.call)
        if parting(self.file, first.call, later.call) is not None:  # only one of them runs
            return False
        between = {
            model for call, models in self._forwards if start < self.file.position(call) < end for model in models
        }
        of_first, of_later = self._calls(first.loss), self._calls(later.loss)
        if of_first is None or of_later is None:
            return not between and _is_on(first.retains_graph)
        shared = self._models(of_first) & self._models(of_later) - between
        return any(self._can_share(model, of_first, of_later, first) for model in shared)

    def _can_share(
        self, model: object, of_first: Sequence[cst.Call], of_later: Sequence[cst.Call], first: BackwardPass
    ) -> bool:
        """Return whether two passes can go through forward passes of a model: the first one frees what it used of one.

        Without ``retain_graph=True`` they then reach different parameters, each of which is averaged once.
        """
        calls = {id(call): call for call in (*of_first, *of_later) if model in self._models([call])}
        if _is_on(first.retains_graph) or len(calls) > 1:
            return True
        (call,) = calls.values()
        loops = [a for a in self._around(call) if isinstance(a, (cst.For, cst.While, cst.BaseComp))]
        return not self.runs_once(call) or not set(loops) <= set(self._around(first.call))

    def _follows_itself(self, one: BackwardPass) -> bool:
        """Return whether a pass runs over and over behind a forward pass outside of its loop."""
        loop = next((a for a in self._around(one.call) if isinstance(a, (cst.For, cst.While))), None)
        if loop is None:
            return False
        inside = {model for call, models in self._forwards if loop in self._around(call) for model in models}
        calls = self._calls(one.loss)
        return not inside and _is_on(one.retains_graph) if calls is None else bool(self._models(calls) - inside)

    @cached_property
    def _forwards(self) -> list[tuple[cst.Call, frozenset[object]]]:
        """The calls that run models forward with gradients."""
        calls = self.file.nodes(cst.Call, below=self.function)
        return [(call, models) for call in calls if (models := self.models_run(call)) and self._has_gradients(call)]

    def _has_gradients(self, call: cst.Call) -> bool:
        blocks = [a for a in self._around(call) if isinstance(a, cst.With)]
        return not any("no_grad" in code(item.item) for block in blocks for item in block.items)

    @cached_property
    def _bindings(self) -> list[_Binding]:
        """The bindings of names in the function, in source order."""
        found: list[_Binding] = []
        for node in self.file.nodes(cst.Assign, cst.AnnAssign, cst.AugAssign, cst.For, cst.Call, below=self.function):
            if isinstance(node, cst.For):
                found += [_Binding(node, dotted(part), node.iter) for part in walk(node.target)]
            elif not isinstance(node, cst.Call):
                for target, value in set_values(node):
                    is_more = isinstance(node, cst.AugAssign) or isinstance(target, cst.Subscript)
                    found.append(_Binding(node, dotted(without_index(target)), value or node.value, is_more))
            elif isinstance(node.func, cst.Attribute) and node.func.attr.value in _GROWING:
                held = dotted(without_index(node.func.value))
                found += [_Binding(node, held, arg.value, is_more=True) for arg in node.args]
        return found

    def _models(self, calls: Sequence[cst.Call]) -> frozenset[object]:
        wanted = {id(call) for call in calls}
        return frozenset(model for call, models in self._forwards if id(call) in wanted for model in models)

    def _calls(self, node: cst.BaseExpression | None) -> list[cst.Call] | None:
        """Return the calls that computed a loss; None where it comes from outside of the function."""
        found: list[cst.Call] = []
        todo: list[cst.CSTNode] = [node] if node is not None else []
        seen: set[int] = set()
        is_known = node is not None
        while todo:
            part = todo.pop()
            if id(part) in seen or _is_cut(part):
                continue
            seen.add(id(part))
            if isinstance(part, cst.Call):
                found.append(part)
            name = dotted(part)
            values = self._values(name, part) if name is not None else []
            todo += values
            if not values and isinstance(part, cst.Attribute):
                todo.append(part.value)
            elif name is None:
                todo += part.children
            elif part is node:
                is_known = bool(values)
        return found if is_known else None

    def _values(self, name: str, use: cst.CSTNode) -> list[cst.BaseExpression]:
        """Return what a name may be bound to at a use: by the statement that surely ran last, and those behind it."""
        around, position = self._around(use), self.file.position(use)
        found: list[cst.BaseExpression] = []
        for binding in reversed(self._bindings):
            node = binding.node
            is_behind = self.file.position(node) >= position or (node in around and not isinstance(node, cst.For))
            if binding.name != name or is_behind:
                continue
            found.append(binding.value)
            blocks = [a for a in self._around(node) if isinstance(a, _BLOCKS)]
            if not binding.is_more and all(block in around for block in blocks):
                break
        return found

    def _around(self, node: cst.CSTNode) -> list[cst.CSTNode]:
        """Return what is around a node in the function, innermost first."""
        found: list[cst.CSTNode] = []
        for outer in self.file.ancestors(node):
            if outer is self.function:
                break
            found.append(outer)
        return found


def _is_on(flag: cst.BaseExpression | None) -> bool:
    return flag is not None and not is_literal(flag, "False") and not is_literal(flag, "None")


def _is_cut(node: cst.CSTNode) -> bool:
    """Return whether an expression carries no gradient, as ``x.detach()``."""
    return isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value in _CUTS
