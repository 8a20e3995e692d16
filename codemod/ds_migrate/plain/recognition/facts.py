"""Facts about a training loop, as found in its files, frozen."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import libcst as cst

from ds_migrate.options import Options
from ds_migrate.plain.dataflow.flow import Flow, Given
from ds_migrate.plain.dataflow.values import Value, Values, Variable
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import dotted
from ds_migrate.syntax.source import SourceFile


@dataclass(frozen=True, eq=False)
class Place:
    """A node, and the file and function that it is in."""

    file: SourceFile
    node: cst.CSTNode

    @property
    def function(self) -> cst.FunctionDef | None:
        return self.file.function(self.node)

    @property
    def position(self) -> tuple[int, int]:
        return self.file.position(self.node)


@dataclass(frozen=True, eq=False)
class Refusal:
    """A reason to leave a program as it is.

    Attributes:
        help: the smallest change with which it converts.
        given: the parameters that are the model, which callers outside of the program give.
    """

    code: Code
    file: SourceFile
    node: cst.CSTNode
    message: str
    help: str
    given: Sequence[Given] = ()


@dataclass(frozen=True, eq=False)
class Step(Place):
    """``optimizer.step()`` or ``scaler.step(optimizer)``.

    Attributes:
        owner: the expression of the optimizer.
        is_phase: whether it is one of several calls that make a step together, as those of SAM. They stay the
            optimizer's, on gradients that its engine has averaged.
        closure: with which the optimizer computes the loss itself.
    """

    call: cst.Call
    owner: cst.BaseExpression
    optimizers: Values
    scaler: cst.BaseExpression | None = None
    is_phase: bool = False
    closure: cst.BaseExpression | None = None

    @property
    def is_own(self) -> bool:
        """Return whether the optimizer itself steps, so that its engine neither clips nor clears gradients."""
        return self.is_phase or self.closure is not None


@dataclass(frozen=True, eq=False)
class Backward(Place):
    """``loss.backward()``.

    Attributes:
        gradient: that of the loss, where one is passed.
        second_order: the ``create_graph`` that is on for optimizers of second order alone.
        is_function: whether it is ``torch.autograd.backward(loss)``.
    """

    call: cst.Call
    loss: cst.BaseExpression
    scaler: cst.BaseExpression | None = None
    retains_graph: cst.BaseExpression | None = None
    gradient: cst.BaseExpression | None = None
    second_order: cst.BaseExpression | None = None
    is_function: bool = False


@dataclass(frozen=True, eq=False)
class ZeroGrad(Place):
    """``optimizer.zero_grad()`` or ``model.zero_grad()``; ``owner`` is what it is called on.

    ``is_loop``: it is a loop over ``model.parameters()`` that sets each gradient to None.
    """

    call: cst.Call
    owner: cst.BaseExpression
    values: Values
    is_loop: bool = False


@dataclass(frozen=True, eq=False)
class Clip(Place):
    """``clip_grad_norm_(parameters, norm)``. ``norm`` is None where a config cannot express the clipping."""

    call: cst.Call
    modules: Values
    norm: cst.BaseExpression | None


@dataclass(frozen=True, eq=False)
class Site:
    """The place where an optimizer is made and bound to a variable.

    Attributes:
        target: the name or attribute that holds it from then on, or its container; the call that makes it, where it is
            an argument.
        statement: the statement after which the engine can be made; before it where the optimizer is an argument.
        makers: the calls that make it.
        modules: the expressions of the modules whose parameters it holds, as they can be written at the site; those of
            lists of modules begin with an asterisk.
        of: the values of these modules.
        parts: where it holds just these parts of one of them: their expressions and values.
        tensors: the expressions of tensors beside modules that it holds; their values are in ``of``.
        new_name: what an optimizer that is an argument of another call is called from now on.
        item: the expression of an optimizer that is in a container.
        again: where other optimizers are bound to the variable later, in the place of this one. ``optimizers``, ``of``
            and ``makers`` are of all of them.
        is_changed: whether another optimizer takes its place while it trains, or it gets further groups.
        clause: the loop that goes through the optimizers of a comprehension, of which each has an engine.
        may_be_given: whether a condition takes one that is made elsewhere, as an argument or in a checkpoint.
    """

    file: SourceFile
    function: cst.FunctionDef | None
    target: cst.Name | cst.Attribute | cst.Call
    variable: Variable
    statement: cst.BaseStatement
    makers: Sequence[tuple[SourceFile, cst.Call]]
    optimizers: Values
    modules: Sequence[str]
    of: Values
    is_partial: bool = False
    parts: Mapping[str, Value] = field(default_factory=dict)
    tensors: Sequence[str] = ()
    new_name: str = ""
    item: str = ""
    again: Sequence[Site] = ()
    is_changed: bool = False
    clause: str = ""
    may_be_given: bool = False

    @property
    def all(self) -> tuple[Site, ...]:
        """The places where an optimizer is bound to the variable."""
        return (self, *self.again)

    @property
    def optimizer_name(self) -> str:
        """The expression of the optimizer, once its engine is made."""
        return self.new_name or self.item or dotted(self.target) or ""


@dataclass(frozen=True, eq=False)
class Operations:
    """Everything in a program that concerns its optimizers.

    Attributes:
        attacks: the steps of optimizers that move a tensor which is made from each batch.
        attacked: the names of these tensors, each with the identity of its function or module.
    """

    steps: Sequence[Step]
    backwards: Sequence[Backward]
    zero_grads: Sequence[ZeroGrad]
    clips: Sequence[Clip]
    refusals: Sequence[Refusal]
    attacks: Sequence[Step] = ()
    attacked: Collection[tuple[int, str]] = ()

    def is_attacked(self, node: cst.BaseExpression, file: SourceFile) -> bool:
        """Return whether an expression is a tensor that an attack moves."""
        return isinstance(node, cst.Name) and (id(file.function(node) or file.module), node.value) in self.attacked


@dataclass(frozen=True, eq=False)
class LoopFacts:
    """Training loops that share optimizers, and what was asked for.

    Attributes:
        single_loop_folders: those with one loop, whose config needs no name.
    """

    operations: Operations
    sites: Sequence[Site]
    flow: Flow
    options: Options
    single_loop_folders: Collection[Path] = ()

    @property
    def all_sites(self) -> list[Site]:
        """The places where an engine is made: several of one variable where its optimizer is replaced."""
        return [one for site in self.sites for one in site.all]

    @cached_property
    def training_files(self) -> frozenset[SourceFile]:
        """The files that step an optimizer, or make one for an engine."""
        return frozenset((*(step.file for step in self.operations.steps), *(site.file for site in self.all_sites)))

    @property
    def functions(self) -> list[tuple[SourceFile, cst.FunctionDef | None]]:
        """The functions that step an optimizer, with their files; None is the body of a module."""
        found = {(id(step.file), id(step.function)): (step.file, step.function) for step in self.operations.steps}
        return list(found.values())


def optimizers_of(steps: Sequence[Step]) -> set[Value]:
    """Return the optimizers that are stepped somewhere."""
    return {value for step in steps for value in step.optimizers}
