"""Expressions that may be a module in its wrapper, by the paths that lead to them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from enum import Enum
from functools import reduce
from itertools import pairwise

import libcst as cst

from ds_migrate.plain.dataflow.branches.blocks import block_path
from ds_migrate.plain.dataflow.containers.mappings import display_items, literal_index
from ds_migrate.plain.dataflow.scopes import names_in
from ds_migrate.plain.dataflow.torch_names import COPY, FLUENT, WRAPPERS
from ds_migrate.plain.dataflow.values import Kind, Values, of_kind
from ds_migrate.plain.ranks.unwrapping.wrapper_tests import is_found_bare, is_found_wrapped
from ds_migrate.plain.recognition.facts import LoopFacts
from ds_migrate.syntax.nodes import dotted, is_literal, parameters, set_values, targets
from ds_migrate.syntax.one_line import expression_text
from ds_migrate.syntax.source import SourceFile

_DEPTH = 8
WrapperCall = tuple[SourceFile, cst.Call, cst.Arg]  # with the argument that is the module


class Wrapped(Enum):
    """The paths on which an expression is a module in its wrapper."""

    NEVER = "never"
    SOMETIMES = "sometimes"  # under a condition
    ALWAYS = "always"

    def or_else(self, other: Wrapped) -> Wrapped:
        return self if self is other else Wrapped.SOMETIMES


class WrappedValues:
    """The expressions of a program, and whether they are modules in their wrappers.

    Args:
        calls: those that wrap.
        values: the modules that they return, and copies of these.
    """

    def __init__(self, facts: LoopFacts, calls: Sequence[WrapperCall], values: Values) -> None:
        self._flow = facts.flow
        self._calls = calls
        self._values = values
        self._answers: dict[tuple[int, int], tuple[cst.CSTNode, Wrapped]] = {}  # with the nodes, which keeps their ids

    def of(self, node: cst.BaseExpression, file: SourceFile, depth: int = _DEPTH) -> Wrapped:
        """Return whether an expression is a module in its wrapper, where it stands."""
        if (id(node), depth) not in self._answers:
            self._answers[id(node), depth] = node, self._find(node, file, depth)
        return self._answers[id(node), depth][1]

    def _find(self, node: cst.BaseExpression, file: SourceFile, depth: int) -> Wrapped:
        if depth == 0:
            return Wrapped.SOMETIMES
        if is_found_bare(node, file, self._flow) or self._is_unwrapped(node, file):
            return Wrapped.NEVER
        if isinstance(node, cst.Call):
            if self._flow.is_call_of(node, file, WRAPPERS):
                return Wrapped.ALWAYS
            if self._flow.is_call_of(node, file, COPY) and node.args:
                return self.of(node.args[0].value, file, depth)
            if isinstance(node.func, cst.Attribute) and node.func.attr.value in FLUENT:
                return self.of(node.func.value, file, depth)
            return self._returned(node, file, depth - 1) or Wrapped.NEVER
        if isinstance(node, cst.IfExp):
            return self.of(node.body, file, depth).or_else(self.of(node.orelse, file, depth))
        if isinstance(node, cst.Name) and _is_unpacked(node, file):
            return self._unpacked(node, file, depth - 1) or self._one_of_several(node, file)
        if isinstance(node, cst.Name):
            scope = self._flow.scopes(file).owner(node.value, node)
            found = Wrapped.NEVER
            if isinstance(scope, cst.FunctionDef) and any(p.name.value == node.value for p in parameters(scope)):
                found = self._given(scope, node.value, depth - 1)
            lines = [(file, line, value) for line, value in _assigned(node.value, file, scope)]
            if not lines and any(
                node.value in names_in(n.target) for n in file.nodes(cst.For, cst.CompFor, below=scope)
            ):
                return self._one_of_several(node, file)
            return self._last(lines, node, file, found, depth)
        if isinstance(node, cst.Attribute) and node.attr.value != "module":
            variable = self._flow.variable(node, file)
            lines = [
                (other, line, line.value)
                for other, line in self._flow.nodes(cst.Assign, cst.AnnAssign)
                for target in targets(line)
                if isinstance(target, cst.Attribute)
                and target.attr.value == node.attr.value
                and line.value is not None
                and self._flow.variable(target, other) == variable
            ]
            return self._last(lines, node, file, Wrapped.NEVER, depth)
        return self._item(node, file, depth - 1) if isinstance(node, cst.Subscript) else Wrapped.NEVER

    def _item(self, node: cst.Subscript, file: SourceFile, depth: int) -> Wrapped:
        """Return the paths on which an item of a dict or list is a module in its wrapper."""
        made: list[Wrapped] = []
        for container in of_kind(self._flow.values(node.value, file), Kind.MAPPING, Kind.SEQUENCE):
            display, other = self._flow.node(container), self._flow.file(container)
            parts = [value for key, value in display_items(display) if key in (None, literal_index(node))]
            made += [self.of(part, other, depth) for part in parts if self._flow.values(part, other)]
        if not made:
            return self._one_of_several(node, file)
        return made[0] if len(set(made)) == 1 else Wrapped.SOMETIMES

    def _one_of_several(self, node: cst.BaseExpression, file: SourceFile) -> Wrapped:
        """Return whether an expression may be one of the modules that are wrapped, on paths that are unknown."""
        return Wrapped.SOMETIMES if self._flow.values(node, file) & self._values else Wrapped.NEVER

    def _is_unwrapped(self, node: cst.BaseExpression, file: SourceFile) -> bool:
        """Return whether a node is in the ``else`` of just that condition under which its module is wrapped.

        So is it in that of ``hasattr(model, "module")``, which asks for the wrapper, and of a flag that is set with it.
        """
        ways = list(pairwise([node, *file.ancestors(node)]))
        if any(
            isinstance(outer, (cst.If, cst.IfExp)) and outer.orelse is inner and _has_wrapper(outer.test, node)
            for inner, outer in ways
        ):
            return True
        tests = {
            _condition(outer)
            for inner, outer in ways
            if isinstance(outer, (cst.If, cst.IfExp)) and outer.orelse is inner
        }
        return bool(tests) and all(
            any(
                isinstance(outer, cst.If) and outer.orelse is not inner and _condition(outer) in tests
                for inner, outer in pairwise([call, *wrapped_in.ancestors(call)])
            )
            or _is_noted(call, wrapped_in, tests)
            for wrapped_in, call, _ in self._calls
            if self._flow.values(call, wrapped_in) & self._flow.values(node, file)
        )

    def _last(
        self,
        lines: list[tuple[SourceFile, cst.CSTNode, cst.BaseExpression]],
        node: cst.CSTNode,
        file: SourceFile,
        before: Wrapped,
        depth: int,
    ) -> Wrapped:
        """Return what a variable holds at a node, after the assignments that come before it."""
        found, function, own = before, file.function(node), block_path(node, file)
        around = list(file.ancestors(node))
        branches: dict[tuple[int, ...], Wrapped] = {}
        for other, line, value in lines:
            is_here = other is file and file.function(line) is function
            if is_here and (file.position(line) >= file.position(node) or any(outer is line for outer in around)):
                continue
            new, path = self.of(value, other, depth - 1), block_path(line, other)
            if isinstance(value, cst.Attribute) and is_found_wrapped(value, other):
                path = path[:-1]  # on the other path there is no wrapper
            every = [branches.get((*path[:-1], branch)) for branch in _branches_beside(line, other)]
            if every and None not in every:  # each branch of a condition sets it
                path, new = path[:-1], reduce(Wrapped.or_else, (way for way in every if way is not None), new)
            branches[path] = new
            found = new if path == (own[: len(path)] if is_here else ()) else found.or_else(new)
        return found

    def _given(self, function: cst.FunctionDef, parameter: str, depth: int) -> Wrapped:
        found: Wrapped | None = None
        for file, call in self._flow.callers.of(function):
            arg = self._flow.given(call, function, parameter, file)
            if arg is None or arg.star:
                continue
            new = self.of(arg.value, file, depth)
            found = new if found is None else found.or_else(new)
        return found or Wrapped.NEVER

    def _unpacked(self, node: cst.Name, file: SourceFile, depth: int) -> Wrapped | None:
        """Return the paths of a name that an assignment unpacks from what a function returns; None where unknown."""
        line = next(outer for outer in file.ancestors(node) if isinstance(outer, cst.Assign))
        names = line.targets[0].target
        if not isinstance(line.value, cst.Call) or not isinstance(names, (cst.Tuple, cst.List)):
            return None
        index = next((i for i, element in enumerate(names.elements) if element.value is node), None)
        return None if index is None else self._returned(line.value, file, depth, index)

    def _returned(self, call: cst.Call, file: SourceFile, depth: int, index: int | None = None) -> Wrapped | None:
        """Return the paths of what a function returns, or of the item at an index; None where unknown."""
        found: Wrapped | None = None
        functions = of_kind(self._flow.values(call.func, file), Kind.FUNCTION, Kind.METHOD)
        for value in self._flow.in_order(functions) if depth > 0 else ():
            other, function = self._flow.file(value), self._flow.node(value)
            for returned in other.returned(function):
                if isinstance(returned, cst.Call) and value in self._flow.values(returned.func, other):
                    continue  # what the function returns of what is within: its other lines
                new = self._of_result(returned, other, depth, index)
                if new is None:
                    return None
                found = new if found is None else found.or_else(new)
        return found

    def _of_result(
        self, node: cst.BaseExpression | None, file: SourceFile, depth: int, index: int | None
    ) -> Wrapped | None:
        if node is None:
            return Wrapped.NEVER
        if index is None:
            return self.of(node, file, depth)
        if isinstance(node, cst.Call):
            return self._returned(node, file, depth - 1, index)
        if not isinstance(node, cst.Tuple) or index >= len(node.elements):
            return None
        return self.of(node.elements[index].value, file, depth)


def _assigned(name: str, file: SourceFile, scope: cst.CSTNode) -> Iterator[tuple[cst.CSTNode, cst.BaseExpression]]:
    """Yield the assignments of a name with the values; the name itself where a value is unpacked from another."""
    for line in file.nodes(cst.Assign, cst.AnnAssign, below=scope):
        for target, value in set_values(line):
            if dotted(target) == name:
                yield line, value if value is not None else target


def _branches_beside(line: cst.CSTNode, file: SourceFile) -> list[int]:
    """Return the other branches of the condition whose ``else`` a line is in, by identity."""
    block = file.around(line, cst.If, cst.Else, cst.For, cst.While, cst.ExceptHandler, cst.FunctionDef)
    found, outer = list[int](), file.parent(block) if isinstance(block, cst.Else) else None
    while isinstance(outer, cst.If):
        found.append(id(outer))
        outer = file.parent(outer)
    return found


def _condition(node: cst.If | cst.IfExp) -> str:
    """Return the text of a condition, which an object that keeps the arguments has as its attribute."""
    return expression_text(node.test).removeprefix("self.")


def _is_noted(call: cst.Call, file: SourceFile, flags: Collection[str]) -> bool:
    """Return whether the block that wraps a module sets one of these flags to True."""
    block = file.parent(file.statement(call))
    return any(
        is_literal(line.value, "True")
        and file.parent(file.statement(line)) is block
        and any((dotted(target) or "").removeprefix("self.") in flags for target in targets(line))
        for line in file.nodes(cst.Assign, below=block)
    )


def _is_unpacked(node: cst.Name, file: SourceFile) -> bool:
    """Return whether a name is a target of an assignment that unpacks another value."""
    return isinstance(file.parent(node), cst.Element) and any(
        isinstance(a, cst.AssignTarget) for a in file.ancestors(node)
    )


def _has_wrapper(test: cst.BaseExpression, node: cst.BaseExpression) -> bool:
    """Return whether a condition only asks whether an expression is in a wrapper, also whether that holds a module."""
    if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.And):
        right = test.right
        held = right.args[0].value if isinstance(right, cst.Call) and _is_call_of(right, "isinstance") else None
        is_held = isinstance(held, cst.Attribute) and held.attr.value == "module" and held.value.deep_equals(node)
        return is_held and _has_wrapper(test.left, node)
    if not isinstance(test, cst.Call) or not _is_call_of(test, "hasattr"):
        return False
    return test.args[0].value.deep_equals(node) and expression_text(test.args[1].value)[1:-1] == "module"


def _is_call_of(node: cst.BaseExpression, name: str) -> bool:
    return isinstance(node, cst.Call) and dotted(node.func) == name and len(node.args) == 2
