"""Functions that return what they are given: ``init_net(net)`` moves and wraps a module, and returns it.

Such a call returns its own argument, not those of other calls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import libcst as cst

from ds_migrate.plain.dataflow.torch_names import FLUENT, SAME_MODULE, WRAPPERS
from ds_migrate.plain.dataflow.values import Kind, Values
from ds_migrate.syntax.nodes import argument, parameters, positional, receiver
from ds_migrate.syntax.source import SourceFile

_SCOPES = (cst.Yield, cst.Nonlocal, cst.Global)


@dataclass(frozen=True)
class ParameterReturn:
    """A function that may return one of its parameters."""

    function: cst.FunctionDef
    file: SourceFile
    evaluate: Callable[[cst.CSTNode, SourceFile], Values]

    def find(self) -> tuple[int | None, str] | None:
        """Return the parameter that is returned on every path: its position, if it has one, and its name."""
        function, file = self.function, self.file
        returned = file.returned(function)
        if not returned or file.nodes(*_SCOPES, below=function):
            return None
        count = len(positional(function))
        for index, param in enumerate(parameters(function)):
            name = param.name.value
            if all(value is not None and self._is_same(value, name) for value in returned) and self._is_kept(name):
                return (index if index < count else None), name
        return None

    def _is_kept(self, name: str) -> bool:
        """Return whether a parameter stays what it was given as, whatever it is assigned."""
        for node in self.file.nodes(cst.Name, below=self.function.body):
            around = self.file.parent(node)
            assert around is not None
            if node.value != name or isinstance(around, (cst.Arg, cst.Return, cst.If, cst.Comparison, cst.IfExp)):
                continue
            if isinstance(around, cst.Attribute) and around.value is node:
                continue
            line = self.file.parent(around)
            is_own = isinstance(around, cst.AssignTarget) and isinstance(line, cst.Assign)
            if not (is_own and isinstance(line, cst.Assign) and self._is_same(line.value, name)):
                return False
        return True

    def _is_same(self, value: cst.BaseExpression, name: str) -> bool:
        """Return whether an expression is the object that a name holds, in a wrapper or not."""
        if isinstance(value, cst.Name):
            return value.value == name
        if isinstance(value, cst.IfExp):
            return self._is_same(value.body, name) and self._is_same(value.orelse, name)
        if not isinstance(value, cst.Call):
            return False
        if (owner := receiver(value, *FLUENT)) is not None:
            return self._is_same(owner, name)
        module = argument(value, 0, "module") or argument(value, 0, "model")
        if module is None or not self._is_same(module.value, name):
            return False
        callees = self.evaluate(value.func, self.file)
        return any(v.kind is Kind.EXTERNAL and v.name in WRAPPERS | SAME_MODULE for v in callees)
