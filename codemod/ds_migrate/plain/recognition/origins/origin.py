"""Origins of what cannot be followed to the place where it is made: the last place that is known of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow, Given
from ds_migrate.plain.dataflow.torch_names import CAST
from ds_migrate.plain.dataflow.values import Kind, Value, of_kind
from ds_migrate.plain.recognition.origins.function_uses import class_around, is_named_like, uses_besides_calls
from ds_migrate.plain.recognition.parameters.parameter_sources import shown
from ds_migrate.syntax.nodes import dotted, is_literal, parameter, set_values, walk
from ds_migrate.syntax.source import SourceFile

_DEPTH = 12
_MOST_USES = 3  # of a function that are looked into


@dataclass(frozen=True)
class Origin:
    """The last place that something can be followed back to.

    Attributes:
        function: where it is an argument that no call in the program gives, the function that takes it.
        given: the parameter for that argument, where the expression is what it gets.
        library: the function or class of a library that returns it, by its full name.
    """

    reason: str
    function: str = ""
    given: Given | None = None
    library: str = ""


@dataclass
class Origins:
    """The search for the origin of one expression."""

    flow: Flow
    _seen: set[int] = field(default_factory=set)

    def of(self, node: cst.CSTNode, file: SourceFile) -> Origin:
        """Return where an expression comes from: an argument that nobody gives where there is nothing else."""
        found = list(self._all(node, file, _DEPTH))
        return next((one for one in found if not one.function), found[0]) if found else _lost(node)

    def foreign(self, node: cst.CSTNode, file: SourceFile) -> Origin | None:
        """Return where an expression comes from, where that may be an object of another library than torch."""
        found = (origin for origin in self._all(node, file, _DEPTH) if origin.function or origin.library)
        return next((origin for origin in found if not origin.library.startswith("torch.")), None)

    def parameters(self, node: cst.CSTNode, file: SourceFile) -> list[Given]:
        """Return the parameters that an expression is, where no call gives them and it is nothing else."""
        found = [origin.given for origin in self._all(node, file, _DEPTH)]
        known = [given for given in found if given is not None]
        return known if len(known) == len(found) else []

    def _all(self, node: cst.CSTNode, file: SourceFile, depth: int) -> Iterator[Origin]:
        if id(node) in self._seen or depth == 0 or (isinstance(node, cst.Name) and is_literal(node, "None")):
            return
        self._seen.add(id(node))
        instance = next(iter(self.flow.in_order(of_kind(self.flow.values(node, file), Kind.INSTANCE))), None)
        if instance is not None:
            yield Origin(f"{shown(node)} may be of the class {instance.name}, which is no optimizer of torch")
        elif isinstance(node, cst.Name):
            yield from self._of_name(node, file, depth)
        elif isinstance(node, cst.Attribute):
            yield from self._of_attribute(node, file, depth)
        elif isinstance(node, cst.Call):
            yield from self._of_call(node, file, depth)
        elif isinstance(node, cst.Subscript):
            yield from _parts(self._all(node.value, file, depth - 1))
        elif isinstance(node, (cst.IfExp, cst.BooleanOperation)):
            parts = (node.body, node.orelse) if isinstance(node, cst.IfExp) else (node.left, node.right)
            yield from (origin for part in parts for origin in self._all(part, file, depth - 1))
        elif isinstance(node, (cst.List, cst.Tuple)) and node.elements:
            yield from (origin for part in node.elements for origin in self._all(part.value, file, depth - 1))
        elif isinstance(node, (cst.List, cst.Dict)) and not node.elements:
            yield Origin("it is put into a container that is empty at first")
        else:
            yield _lost(node)

    def _of_name(self, node: cst.Name, file: SourceFile, depth: int) -> Iterator[Origin]:
        scopes = self.flow.scopes(file)
        if (function := scopes.function_of_parameter(node)) is not None:
            yield from self._of_parameter(node.value, function, file, depth - 1)
            return
        for line in scopes.nodes(node, cst.Assign, cst.AnnAssign):
            for target, value in set_values(line):
                if isinstance(target, cst.Name) and target.value == node.value:
                    yield from self._all(value or line.value, file, depth - 1)
        for loop in scopes.nodes(node, cst.For, cst.CompFor):
            if any(isinstance(part, cst.Name) and part.value == node.value for part in walk(loop.target)):
                yield from self._all(loop.iter, file, depth - 1)

    def _of_attribute(self, node: cst.Attribute, file: SourceFile, depth: int) -> Iterator[Origin]:
        variable = self.flow.variable(node, file)
        if variable is None:
            yield from _parts(self._all(node.value, file, depth - 1))
            return
        found = False
        for other in self.flow.files.values():
            lines = {
                id(line): line for t in other.attributes_by_name.get(node.attr.value, ()) for line in _around(t, other)
            }
            for line in lines.values():
                for target, value in set_values(line):
                    is_same = isinstance(target, cst.Attribute) and target.attr.value == node.attr.value
                    if is_same and self.flow.variable(target, other) == variable:
                        found = True
                        yield from self._all(value or line.value or line, other, depth - 1)
        for method in self._properties(node, file) if not found else ():
            found = True
            yield from self._returned_by(method, depth)
        if not found:
            yield Origin(f"nothing in these files assigns {shown(node)}")

    def _properties(self, node: cst.Attribute, file: SourceFile) -> list[Value]:
        """Return the properties that an attribute is."""
        classes, owners = self.flow.classes, of_kind(self.flow.values(node.value, file), Kind.INSTANCE)
        methods = [classes.method(owner.key, node.attr.value) for owner in self.flow.in_order(owners)]
        return [method for method in methods if method is not None and classes.is_property(method)]

    def _returned_by(self, callee: Value, depth: int) -> Iterator[Origin]:
        home = self.flow.file(callee)
        for returned in home.returned(self.flow.node(callee)):
            if returned is not None:
                yield from self._all(returned, home, depth - 1)

    def _of_call(self, call: cst.Call, file: SourceFile, depth: int) -> Iterator[Origin]:
        callees = self.flow.values(call.func, file)
        for callee in self.flow.in_order(of_kind(callees, Kind.FUNCTION, Kind.METHOD)):
            yield from self._returned_by(callee, depth)
        for library in self.flow.in_order(of_kind(callees, Kind.EXTERNAL)):
            if library.name == CAST and len(call.args) > 1:
                yield from self._all(call.args[1].value, file, depth - 1)
                continue
            known = Origin(f"{library.name}() of a library returns it", library=library.name)
            yield known if library.name != "?" else _lost(call)
        if not callees:
            yield from _parts(self._all(call.func, file, depth - 1))

    def _of_parameter(self, name: str, function: cst.FunctionDef, file: SourceFile, depth: int) -> Iterator[Origin]:
        """Yield where the calls of a function have an argument from."""
        given = [
            (caller, arg)
            for caller, call in self.flow.callers.of(function)
            if (arg := self.flow.given(call, function, name, caller)) is not None
        ]
        for caller, arg in given:
            if arg.star:
                yield from self._of_star(name, arg, caller, _called(function, file))
            else:
                yield from self._all(arg.value, caller, depth - 1)
        if given:
            return
        title = _called(function, file)
        uses = list(uses_besides_calls(function, name, file, self.flow))
        if not uses:
            param = parameter(function, name)
            reason = f"it is the argument {name} of {title}, which no call in them gives"
            yield Origin(reason, title, Given(file, function, param) if param is not None else None)
        named = [use for use in uses if use[2] is not None and is_named_like(use[2], name)]  # others may be unrelated
        for other, use, arg in (named or uses)[:_MOST_USES]:
            if named and arg is not None and not of_kind(self.flow.values(arg.value, other), Kind.OPTIMIZER):
                yield from self._all(arg.value, other, depth - 1)
            else:
                place = f"{other.path.name}:{other.reported_position(use)[0]}"
                yield Origin(f"it is the argument {name} of {title}, whose call cannot be followed from {place}")

    def _of_star(self, name: str, arg: cst.Arg, caller: SourceFile, title: str) -> Iterator[Origin]:
        """Yield where a call has an argument from that it hands on by ``*args`` or ``**kwargs``."""
        function = caller.function(arg)
        stars = (function.params.star_arg, function.params.star_kwarg) if function is not None else ()
        is_own = any(isinstance(star, cst.Param) and star.name.value == dotted(arg.value) for star in stars)
        is_called = function is None or bool(self.flow.callers.of(function))
        if function is None or not is_own or is_called:
            yield Origin(f"it is the argument {name} of {title}, which {arg.star}{shown(arg.value)} gives")
        elif next(uses_besides_calls(function, name, caller, self.flow), None) is None:
            outer = _called(function, caller)
            yield Origin(f"it is the argument {name} of {outer}, which no call in them gives", outer)


def _around(node: cst.CSTNode, file: SourceFile) -> list[cst.Assign | cst.AnnAssign]:
    """Return the assignment that sets an attribute."""
    for outer in file.ancestors(node):
        if isinstance(outer, (cst.Assign, cst.AnnAssign)):
            return [outer]
        if not isinstance(outer, (cst.AssignTarget, cst.Element, cst.Tuple, cst.List)):
            break
    return []


def _called(function: cst.FunctionDef, file: SourceFile) -> str:
    """Return the call of a function, as in messages: ``Trainer()`` of ``Trainer.__init__``."""
    owner = class_around(function, file)
    if owner is None:
        return f"{function.name.value}()"
    return f"{owner.name.value}{'' if function.name.value == '__init__' else f'.{function.name.value}'}()"


def _parts(origins: Iterator[Origin]) -> Iterator[Origin]:
    """Yield the origins of a part of what has these, or of what it returns."""
    return (replace(origin, given=None) for origin in origins)


def _lost(node: cst.CSTNode) -> Origin:
    return Origin(f"{shown(node)} cannot be followed")
