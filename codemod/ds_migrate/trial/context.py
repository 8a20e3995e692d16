"""Where a file holds the trial context, and what it asks of it.

The context may have any name: a parameter, an attribute, a local alias, an argument passed on to a helper.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import libcst as cst

from ds_migrate.syntax.source import SourceFile
from ds_migrate.syntax.tree import argument, dotted, parameters, targets

_USUAL = frozenset({"context", "trial_context"})
_ANNOTATIONS = ("TrialContext", "CheckpointLoadContext", "PyTorchExperimentalContext")


@dataclass(frozen=True, eq=False)
class ContextUse:
    """``<context>.attr`` (``experimental.`` included in ``attr``); ``call`` when it is called at once."""

    file: SourceFile
    node: cst.Attribute
    attr: str
    call: cst.Call | None
    function: cst.FunctionDef | None
    owner: cst.ClassDef | None

    @property
    def receiver(self) -> cst.BaseExpression:
        """The expression that is the context itself."""
        value = self.node.value
        if self.attr.startswith("experimental."):
            assert isinstance(value, cst.Attribute)
            return value.value
        return value


class Contexts:
    """The names of the context in one file. ``classes`` are the trials among its classes."""

    def __init__(self, file: SourceFile, classes: list[cst.ClassDef]) -> None:
        self.file = file
        self.classes = set(classes)
        self._locals: dict[cst.CSTNode, set[str]] = {}
        self.attributes: set[str] = set()
        self._kept_by: dict[cst.ClassDef | None, set[str]] = {}
        self._functions: list[cst.FunctionDef] = list(file.nodes(cst.FunctionDef))
        for function in self._functions:
            self._locals[function] = self._context_parameters(function)
        while self._propagate():
            pass

    def is_context(self, node: cst.CSTNode) -> bool:
        """Whether the expression is the trial context."""
        if isinstance(node, cst.Name):
            return any(
                node.value in self._locals.get(a, ())
                for a in self.file.ancestors(node)
                if isinstance(a, cst.FunctionDef)
            )
        if isinstance(node, cst.Attribute):
            if node.attr.value in _USUAL:
                return True
            return (
                isinstance(node.value, cst.Name) and node.value.value == "self" and node.attr.value in self.attributes
            )
        return False

    @cached_property
    def uses(self) -> list[ContextUse]:
        """Every attribute taken from the context, in source order."""
        found: list[ContextUse] = []
        for node in self.file.nodes(cst.Attribute):
            attr = node.attr.value
            value = node.value
            if isinstance(value, cst.Attribute) and value.attr.value == "experimental" and self.is_context(value.value):
                attr = f"experimental.{attr}"
            elif not self.is_context(value):
                continue
            parent = self.file.parent(node)
            if attr == "experimental" and isinstance(parent, cst.Attribute):
                continue
            call = parent if isinstance(parent, cst.Call) and parent.func is node else None
            owner = next((a for a in self.file.ancestors(node) if isinstance(a, cst.ClassDef)), None)
            found.append(ContextUse(self.file, node, attr, call, self.file.function(node), owner))
        return found

    def kept_by(self, owner: cst.ClassDef) -> set[str]:
        """The attributes in which a class itself keeps the context."""
        return self._kept_by.get(owner, set())

    def attribute_tests(self) -> list[cst.Call]:
        """``hasattr(context, name)`` and ``getattr(context, name, ...)``."""
        return [
            node
            for node in self.file.nodes(cst.Call)
            if isinstance(node.func, cst.Name)
            and node.func.value in ("hasattr", "getattr")
            and len(node.args) >= 2
            and self.is_context(node.args[0].value)
        ]

    def _context_parameters(self, function: cst.FunctionDef) -> set[str]:
        owner = self._class_of(function)
        found: set[str] = set()
        for index, param in enumerate(parameters(function)):
            name = param.name.value
            if param.annotation is not None:
                if _annotation_text(param.annotation.annotation).endswith(_ANNOTATIONS):
                    found.add(name)
            elif name in _USUAL or (owner in self.classes and function.name.value == "__init__" and index == 1):
                found.add(name)
        if owner in self.classes and function.name.value == "__init__" and not found:
            named = [p.name.value for p in parameters(function)]
            found.update(n for n in named[1:2] if "context" in n or len(named) == 2)
        return found

    def _class_of(self, function: cst.FunctionDef) -> cst.ClassDef | None:
        for ancestor in self.file.ancestors(function):
            if isinstance(ancestor, cst.ClassDef):
                return ancestor
            if isinstance(ancestor, cst.FunctionDef):
                return None
        return None

    def _propagate(self) -> bool:
        """One round through assignments and calls; True when something new was learned."""
        grown = False
        methods = {f.name.value: f for f in self._functions}
        for node in self.file.nodes(cst.Assign, cst.AnnAssign):
            function = self.file.function(node)
            if function is None or node.value is None or not self.is_context(node.value):
                continue
            for target in targets(node):
                grown |= self._learn(function, target)
        for call in self.file.nodes(cst.Call):
            grown |= self._learn_call(call, methods)
        return grown

    def _learn(self, function: cst.FunctionDef, target: cst.BaseExpression) -> bool:
        if isinstance(target, cst.Name) and target.value not in self._locals[function]:
            self._locals[function].add(target.value)
            return True
        name = dotted(target) or ""
        if name.startswith("self.") and name.count(".") == 1:
            self._kept_by.setdefault(self._class_of(function), set()).add(name[5:])
            if name[5:] not in self.attributes:
                self.attributes.add(name[5:])
                return True
        return False

    def _learn_call(self, call: cst.Call, functions: dict[str, cst.FunctionDef]) -> bool:
        """A function of this file that is given the context calls it by its own parameter's name."""
        if not any(self.is_context(arg.value) for arg in call.args):
            return False
        method = isinstance(call.func, cst.Attribute)
        name = call.func.attr.value if isinstance(call.func, cst.Attribute) else getattr(call.func, "value", None)
        function = functions.get(name) if isinstance(name, str) else None
        if function is None:
            return False
        grown = False
        bound = parameters(function)[1:] if method else parameters(function)
        for index, param in enumerate(bound):
            arg = argument(call, index, param.name.value)
            if arg is not None and self.is_context(arg.value) and param.name.value not in self._locals[function]:
                self._locals[function].add(param.name.value)
                grown = True
        return grown


def _annotation_text(node: cst.BaseExpression) -> str:
    """The dotted text of an annotation, quoted or not, ``Optional[...]`` unwrapped."""
    if isinstance(node, cst.SimpleString):
        return str(node.evaluated_value)
    if isinstance(node, cst.Attribute):
        return node.attr.value
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Subscript) and len(node.slice) == 1 and isinstance(node.slice[0].slice, cst.Index):
        return _annotation_text(node.slice[0].slice.value)
    return ""
