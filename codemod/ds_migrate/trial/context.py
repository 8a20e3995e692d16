"""The names of the trial context in a file, and what the file takes from it.

The context may have any name: a parameter, an attribute, a local alias, an argument passed on to a helper.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property

import libcst as cst

from ds_migrate.syntax.nodes import argument, dotted, last_name, parameters, targets, walk
from ds_migrate.syntax.source import SourceFile

_USUAL = frozenset({"context", "trial_context"})
_ANNOTATIONS = ("TrialContext", "CheckpointLoadContext", "PyTorchExperimentalContext")


# What Determined 0.12 and 0.13 called them.
EARLY_NAMES = {
    "_Model": "wrap_model",
    "Model": "wrap_model",
    "_Optimizer": "wrap_optimizer",
    "Optimizer": "wrap_optimizer",
    "_LRScheduler": "wrap_lr_scheduler",
    "LRScheduler": "wrap_lr_scheduler",
    "_backward": "backward",
    "_step_optimizer": "step_optimizer",
    "_configure_apex_amp": "configure_apex_amp",
}


@dataclass(frozen=True, eq=False)
class ContextUse:
    """``<context>.attr`` (``experimental.`` included in ``attr``, early names given as today's); ``call`` when it is
    called at once."""

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


@dataclass(frozen=True, eq=False)
class AttributeTest:
    """``hasattr`` or ``getattr`` of the context, or of its ``experimental``; ``name`` is None where no literal gives
    it."""

    call: cst.Call
    context: cst.BaseExpression
    name: str | None
    is_experimental: bool


class ContextNames:
    """The names of the context in one file. ``classes`` are the trials among its classes."""

    def __init__(self, file: SourceFile, classes: list[cst.ClassDef]) -> None:
        self.file = file
        self.classes = set(classes)
        self._locals: dict[cst.CSTNode, set[str]] = {}
        self._all_locals: set[str] = set()
        self.attributes: set[str] = set()
        self._kept_by: dict[cst.ClassDef | None, set[str]] = {}
        self._functions: list[cst.FunctionDef] = list(file.nodes(cst.FunctionDef))
        self._properties = [f for f in self._functions if any(_is_property(d) for d in f.decorators)]
        for function in self._functions:
            self._locals[function] = self._context_parameters(function)
            self._all_locals |= self._locals[function]
        self.propagate()

    def propagate(self) -> None:
        """Follow what is known through the file's assignments and calls until nothing new is learned."""
        while self._propagate():
            pass

    def is_context(self, node: cst.CSTNode) -> bool:
        """Return whether the expression is the trial context."""
        if isinstance(node, cst.Name):
            return node.value in self._all_locals and any(
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
            attr = EARLY_NAMES.get(node.attr.value, node.attr.value)
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
        """Return the attributes in which a class itself keeps the context."""
        return self._kept_by.get(owner, set())

    def attribute_tests(self) -> Iterator[AttributeTest]:
        """Yield the calls ``hasattr(context, name)`` and ``getattr(context, name, ...)``, and those of its
        ``experimental``."""
        for node in self.file.nodes(cst.Call):
            if dotted(node.func) not in ("hasattr", "getattr") or len(node.args) < 2:
                continue
            tested, name = node.args[0].value, node.args[1].value
            group = isinstance(tested, cst.Attribute) and tested.attr.value == "experimental"
            context = tested.value if group and isinstance(tested, cst.Attribute) else tested
            if self.is_context(context):
                text = str(name.evaluated_value) if isinstance(name, cst.SimpleString) else None
                yield AttributeTest(node, context, text, group)

    def _context_parameters(self, function: cst.FunctionDef) -> set[str]:
        owner = self._class_of(function)
        found: set[str] = set()
        for index, param in enumerate(parameters(function)):
            name = param.name.value
            if param.annotation is not None:
                if any(kind.endswith(_ANNOTATIONS) for kind in _annotated(param.annotation.annotation)):
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
        """Go through assignments and calls once; return whether something new was learned."""
        grown = False
        for node in self.file.nodes(cst.Assign, cst.AnnAssign):
            function = self.file.function(node)
            if function is None or node.value is None:
                continue
            for target, value in pairs(node):
                if self.is_context(value):
                    grown |= self._learn(function, target)
        for function in self._properties:
            returned = [n.value for n in walk(function) if isinstance(n, cst.Return) and n.value is not None]
            if returned and all(map(self.is_context, returned)):
                grown |= self._keep(function, function.name.value)
        for call in self.given:
            name = call.func.attr if isinstance(call.func, cst.Attribute) else call.func
            function = self.functions.get(name.value) if isinstance(name, cst.Name) else None
            grown |= function is not None and self.receive(function, call)
        return grown

    @property
    def given(self) -> Iterator[cst.Call]:
        """The calls that are given the context."""
        return (call for call in self.file.nodes(cst.Call) if any(self.is_context(arg.value) for arg in call.args))

    @cached_property
    def functions(self) -> dict[str, cst.FunctionDef]:
        """The functions by the name that calls them: their own, or that of the class for a constructor."""
        found = {f.name.value: f for f in self._functions}
        for f in self._functions:
            owner = self._class_of(f)
            if owner is not None and f.name.value == "__init__":
                found.setdefault(owner.name.value, f)
        return found

    def _learn(self, function: cst.FunctionDef, target: cst.BaseExpression) -> bool:
        if isinstance(target, cst.Name) and target.value not in self._locals[function]:
            self._add_local(function, target.value)
            return True
        name = dotted(target) or ""
        return name.startswith("self.") and name.count(".") == 1 and self._keep(function, name[5:])

    def _keep(self, function: cst.FunctionDef, attribute: str) -> bool:
        self._kept_by.setdefault(self._class_of(function), set()).add(attribute)
        known = attribute in self.attributes
        self.attributes.add(attribute)
        return not known

    def receive(self, function: cst.FunctionDef, call: cst.Call, giving: ContextNames | None = None) -> bool:
        """Learn by which parameters a function of this file gets the context from a call, in this file or in that of
        ``giving``; True when that is new."""
        grown = False
        is_context = (giving or self).is_context
        bound = self._class_of(function) is not None and not any(
            dotted(d.decorator) == "staticmethod" for d in function.decorators
        )
        for index, param in enumerate(parameters(function)[1:] if bound else parameters(function)):
            arg = argument(call, index, param.name.value)
            if arg is not None and is_context(arg.value) and param.name.value not in self._locals[function]:
                self._add_local(function, param.name.value)
                grown = True
        return grown

    def _add_local(self, function: cst.FunctionDef, name: str) -> None:
        self._locals[function].add(name)
        self._all_locals.add(name)


def pairs(node: cst.Assign | cst.AnnAssign) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression]]:
    """Yield the targets of an assignment with their values; tuples of the same length element by element."""
    value = node.value
    for target in targets(node):
        if isinstance(target, (cst.Tuple, cst.List)) and isinstance(value, (cst.Tuple, cst.List)):
            if len(target.elements) == len(value.elements):
                yield from zip((e.value for e in target.elements), (e.value for e in value.elements), strict=True)
        elif value is not None:
            yield target, value


def link(known: Collection[ContextNames]) -> None:
    """Follow the context from file to file: into functions and classes that one imports from another."""
    grown = True
    while grown:
        grown = False
        for giving in known:
            for call in giving.given:
                name = dotted(call.func) or ""
                if name.split(".")[0] not in giving.file.names.bindings:
                    continue
                last = (giving.file.names.qualified(call.func) or name).rpartition(".")[2]
                for other in known:
                    function = other.functions.get(last) if other is not giving else None
                    if function is not None and other.receive(function, call, giving):
                        other.propagate()
                        grown = True


def _is_property(decorator: cst.Decorator) -> bool:
    return last_name(decorator.decorator) in ("property", "cached_property")


def _annotated(node: cst.BaseExpression) -> Iterator[str]:
    """Yield the last names of an annotation's classes, quoted or not: ``C`` and ``None`` of ``det.C | None``."""
    if isinstance(node, cst.SimpleString):
        yield str(node.evaluated_value)
    elif isinstance(node, cst.Attribute):
        yield node.attr.value
    elif isinstance(node, cst.Name):
        yield node.value
    elif isinstance(node, cst.BinaryOperation):
        yield from _annotated(node.left)
        yield from _annotated(node.right)
    elif isinstance(node, cst.Subscript) and last_name(node.value) in ("Optional", "Union"):
        for element in node.slice:
            if isinstance(element.slice, cst.Index):
                yield from _annotated(element.slice.value)
