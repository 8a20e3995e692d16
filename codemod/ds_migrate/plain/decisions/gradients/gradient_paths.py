"""The content of gradients on the ways through a program.

An engine clears gradients in its step. That is what a program did only where each of its ways from a ``step()`` to the
next ``backward()`` passes a ``zero_grad()``, and each way from a ``backward()`` a ``step()``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import libcst as cst

from ds_migrate.plain.dataflow.branches.blocks import is_exit
from ds_migrate.plain.dataflow.calls.callers import Callers
from ds_migrate.plain.decisions.gradients.gradient_states import (
    CLEARED,
    GradientUses,
    Operation,
    States,
    Sum,
    Used,
    counted,
)
from ds_migrate.plain.recognition.facts import Backward, Place, Step, ZeroGrad
from ds_migrate.syntax.nodes import body_of, dotted, parameters, walk
from ds_migrate.syntax.source import SourceFile

_O = TypeVar("_O", bound=Operation)


@dataclass(frozen=True)
class GradientPaths:
    """The gradients of one optimizer that are used twice, or not at all.

    Attributes:
        used_again: the steps whose gradients a later backward pass may add to, or a later step may use alone.
        stepped_again: those of them whose gradients may be in the sum of a later step.
        unused: the backward passes that another one, or a ``zero_grad()``, may follow without a step between.
    """

    used_again: Sequence[Step]
    stepped_again: Sequence[Step]
    unused: Sequence[Backward]


def follow_gradients(
    operations: Sequence[Operation],
    files: Iterable[SourceFile],
    callers: Callers,
    is_of_other: Callable[[SourceFile, cst.Call], bool],
) -> GradientPaths:
    """Follow the gradients of one optimizer through a program, by the operations that concern it.

    Args:
        is_of_other: returns whether a call is given other optimizers alone.
    """
    walker = _Walker(operations, callers, is_of_other)
    for file in files:
        walker.module(file)
    for place in operations:  # functions that nothing calls by name: callbacks, hooks
        walker.start(place)
    uses = walker.uses
    return GradientPaths(_distinct(uses.used_again), _distinct(uses.stepped_again), _distinct(uses.unused))


def _distinct(operations: Iterable[_O]) -> list[_O]:
    return sorted(dict.fromkeys(operations), key=lambda one: (str(one.file.path), one.file.number(one.node)))


@dataclass
class _Exits:
    """The content of gradients where a block is left early."""

    broken: States = frozenset()
    continued: States = frozenset()
    returned: States = frozenset()


@dataclass
class _Walker:
    operations: Sequence[Operation]
    callers: Callers
    is_of_other: Callable[[SourceFile, cst.Call], bool]
    uses: GradientUses = field(default_factory=GradientUses)

    def __post_init__(self) -> None:
        self._by_call = {id(operation.call): operation for operation in self.operations}
        self._called: dict[int, list[tuple[SourceFile, cst.FunctionDef]]] = {}
        self._eventful: dict[int, tuple[SourceFile, cst.FunctionDef]] = {}
        for operation in self.operations:
            self._add_function(operation.file, operation.function)
        self._tries: list[States] = []
        self._running: list[cst.FunctionDef] = []
        self._known: dict[tuple[int, States], States] = {}
        self._visited: set[int] = set()

    def _add_function(self, file: SourceFile, function: cst.FunctionDef | None) -> None:
        """Add a function that operates on gradients, and those that call it."""
        if function is None or id(function) in self._eventful:
            return
        self._eventful[id(function)] = file, function
        is_given = self._is_given_optimizer(function)
        for caller, call in self.callers.of(function):
            if is_given and self.is_of_other(caller, call):
                continue
            self._called.setdefault(id(call), []).append((file, function))
            self._add_function(caller, caller.function(call))

    def _is_given_optimizer(self, function: cst.FunctionDef) -> bool:
        """Return whether all that a function steps and clears are its parameters."""
        names = {parameter.name.value for parameter in parameters(function)}
        own = [o for o in self.operations if not isinstance(o, Backward) and o.function is function]
        return bool(own) and all(dotted(operation.owner) in names for operation in own)

    # -- where a program starts ------------------------------------------------------------------------------------

    def module(self, file: SourceFile) -> None:
        exits = _Exits()
        self._block(file.module.body, file, CLEARED, exits)

    def start(self, place: Place) -> None:
        """Start in the function of an operation that was not reached, over and over."""
        function = place.function
        if function is None or id(function) in self._visited:
            return
        states, after = States(), CLEARED
        while not after <= states:
            states |= after
            after = self._call(place.file, function, states)

    # -- statements ------------------------------------------------------------------------------------------------

    def _block(self, body: Iterable[cst.CSTNode], file: SourceFile, states: States, exits: _Exits) -> States:
        for statement in body:
            if not states:
                break
            states = self._statement(statement, file, states, exits)
        return states

    def _statement(self, node: cst.CSTNode, file: SourceFile, states: States, exits: _Exits) -> States:
        if isinstance(node, (cst.FunctionDef, cst.ClassDef)):
            return states if isinstance(node, cst.FunctionDef) else self._block(body_of(node), file, states, exits)
        if isinstance(node, cst.If):
            return self._if(node, file, states, exits)
        if isinstance(node, (cst.For, cst.While)):
            return self._loop(node, file, states, exits)
        if isinstance(node, (cst.Try, cst.TryStar)):
            return self._try(node, file, states, exits)
        if isinstance(node, cst.With):
            states = self._calls(node.items, file, states)
            return self._block(node.body.body, file, states, exits)
        if isinstance(node, cst.Match):
            before = self._calls([node.subject], file, states)
            return before.union(*(self._block(case.body.body, file, before, exits) for case in node.cases))
        return self._line(node, file, states, exits)

    def _line(self, node: cst.CSTNode, file: SourceFile, states: States, exits: _Exits) -> States:
        statement = node.body[0] if isinstance(node, cst.SimpleStatementLine) else node
        states = self._calls([statement], file, states)
        if isinstance(statement, cst.Break):
            exits.broken |= states
        elif isinstance(statement, cst.Continue):
            exits.continued |= states
        elif isinstance(statement, cst.Return):
            exits.returned |= states
        ends_the_process = isinstance(statement, cst.Expr) and is_exit(statement.value)
        is_left = isinstance(statement, (cst.Break, cst.Continue, cst.Return, cst.Raise)) or ends_the_process
        return frozenset() if is_left else states

    def _if(self, node: cst.If, file: SourceFile, states: States, exits: _Exits) -> States:
        states = self._calls([node.test], file, states)
        name = _without_not(node.test)
        taken = self._block(node.body.body, file, counted(states, name) if name else states, exits)
        if not name:
            states = counted(states, dotted(node.test))
        if self._only_clears(node.body) and not self._operates(node.orelse):
            # Both conditions count micro-batches, or ask for the phase, where one guards the step and one this.
            states = frozenset(s for s in states if not self._is_guarded(s, node, file))
        if node.orelse is None:
            return taken if self._clears_the_rest(node, file) else taken | states
        other = [node.orelse] if isinstance(node.orelse, cst.If) else node.orelse.body.body
        return taken | self._block(other, file, states, exits)

    def _clears_the_rest(self, node: cst.If, file: SourceFile) -> bool:
        """Return whether gradients are cleared here where they were not before, by one condition and its opposite."""
        if not self._only_clears(node.body):
            return False
        block = file.parent(node)
        beside = block.body if isinstance(block, (cst.IndentedBlock, cst.Module)) else ()
        place = next((i for i, statement in enumerate(beside) if statement is node), 0)
        for other in reversed(beside[:place]):
            is_clearing = isinstance(other, cst.If) and other.orelse is None and self._only_clears(other.body)
            if is_clearing and isinstance(other, cst.If) and _are_opposite(other.test, node.test):
                return True
            if self._operates(other):
                return False
        return False

    def _only_clears(self, body: cst.CSTNode) -> bool:
        found = [self._by_call.get(id(n)) for n in walk(body) if id(n) in self._by_call]
        return bool(found) and all(isinstance(operation, ZeroGrad) for operation in found)

    def _operates(self, branch: cst.CSTNode | None) -> bool:
        """Return whether a branch touches gradients, also in functions that it calls."""
        return branch is not None and any(id(n) in self._by_call or id(n) in self._called for n in walk(branch))

    def _is_guarded(self, state: Backward | Sum | Used | None, node: cst.If, file: SourceFile) -> bool:
        """Return whether a condition other than those around ``node`` guards a step, with none in its other branch.

        Where something else happens in the other branch of ``node``, or a backward pass lies between, it must be the
        same condition.
        """
        around = {id(outer) for outer in file.ancestors(node)}
        is_same = isinstance(state, Sum) or node.orelse is not None
        return isinstance(state, (Sum, Used)) and any(
            isinstance(outer, cst.If)
            and id(outer) not in around
            and not self._operates(outer.orelse)
            and (not is_same or outer.test.deep_equals(node.test))
            for outer in state.step.file.ancestors(state.step.node)
        )

    def _loop(self, node: cst.For | cst.While, file: SourceFile, states: States, exits: _Exits) -> States:
        states = self._calls([node.iter if isinstance(node, cst.For) else node.test], file, states)
        while True:
            own = _Exits()
            after = self._block(node.body.body, file, states, own) | own.continued
            if after <= states:
                break
            states |= after
        exits.returned |= own.returned
        if node.orelse is not None:
            after = self._block(node.orelse.body.body, file, after, exits)
        return after | own.broken

    def _try(self, node: cst.Try | cst.TryStar, file: SourceFile, states: States, exits: _Exits) -> States:
        self._tries.append(states)
        after = self._block(node.body.body, file, states, exits)
        failed = self._tries.pop()
        if self._tries:
            self._tries[-1] |= failed
        if node.orelse is not None:
            after = self._block(node.orelse.body.body, file, after, exits)
        after = after.union(*(self._block(handler.body.body, file, failed, exits) for handler in node.handlers))
        return after if node.finalbody is None else self._block(node.finalbody.body.body, file, after, exits)

    # -- operations ------------------------------------------------------------------------------------------------

    def _calls(self, nodes: Iterable[cst.CSTNode], file: SourceFile, states: States) -> States:
        for node in nodes:
            for call in file.nodes(cst.Call, below=node):
                operation = self._by_call.get(id(call))
                if operation is not None:
                    states = self.uses.after(operation, states)
                elif id(call) in self._called:
                    targets = self._called[id(call)]
                    states = frozenset().union(*(self._call(*target, states) for target in targets))
                if self._tries:
                    self._tries[-1] |= states
        return states

    def _call(self, file: SourceFile, function: cst.FunctionDef, states: States) -> States:
        if function in self._running:
            return states
        self._visited.add(id(function))
        key = id(function), states
        if key not in self._known or self._tries:  # what it holds midway concerns the handlers
            self._running.append(function)
            exits = _Exits()
            after = self._block(body_of(function), file, states, exits)
            self._known[key] = after | exits.returned or states
            self._running.pop()
        return self._known[key]


def _without_not(test: cst.BaseExpression) -> str | None:
    """Return the name that a condition is the opposite of."""
    is_opposite = isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not)
    return dotted(test.expression) if is_opposite and isinstance(test, cst.UnaryOperation) else None


def _are_opposite(one: cst.BaseExpression, other: cst.BaseExpression) -> bool:
    """Return whether one of two conditions holds where the other does not: ``flag`` and ``not flag``."""
    return any(_without_not(a) is not None and _without_not(a) == dotted(b) for a, b in ((one, other), (other, one)))
