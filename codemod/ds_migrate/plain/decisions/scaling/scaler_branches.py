"""Places that run where a GradScaler is off or None: there the loss is not scaled."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from ds_migrate.plain.dataflow.branches.equal_tests import is_set_once
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.recognition.facts import Backward, LoopFacts, Place, Site, Step
from ds_migrate.syntax.branches import tests_around
from ds_migrate.syntax.nodes import argument, dotted
from ds_migrate.syntax.source import SourceFile


class InexactScalingError(Exception):
    def __init__(self, message: str, file: SourceFile, node: cst.CSTNode, way_out: str) -> None:
        super().__init__(message)
        self.file, self.node, self.way_out = file, node, way_out


def is_unscaled_branch(
    other: Place,
    scaled: Sequence[Step | Backward],
    makers: Sequence[tuple[SourceFile, cst.Call]],
    facts: LoopFacts,
    site: Site | None = None,
) -> bool:
    """Return whether a place runs where the scaler is off or None: in the other branch of the test of that.

    Args:
        site: the optimizer that steps there, where calls with other ones do not matter.
    """
    if len(makers) != 1:
        return False
    file, maker = makers[0]
    condition = _condition_of(file, maker)
    for test, (node, taken) in _branches(other).items():
        if taken or not any(_branches(place).get(test, (node, False))[1] for place in scaled):
            continue
        if of_kind(facts.flow.values(node, other.file), Kind.SCALER):
            if other.function is file.function(maker) or _is_given(test, other, file.function(maker), facts, site):
                return True
        elif condition is not None and test == dotted(condition) and is_set_once(test, file):
            is_near = other.file is file and other.function is file.function(maker)
            return is_near or _is_one_attribute(condition, file, node, other.file, facts)
    return False


def _is_one_attribute(
    one: cst.BaseExpression, file: SourceFile, other: cst.BaseExpression, other_file: SourceFile, facts: LoopFacts
) -> bool:
    """Return whether two methods read the same attribute of their object, which one line of the program sets."""
    variable = facts.flow.variable(one, file)
    if not isinstance(one, cst.Attribute) or variable is None or variable != facts.flow.variable(other, other_file):
        return False
    lines = [
        node
        for each in facts.flow.files.values()
        for node in each.attributes_by_name.get(one.attr.value, ())
        if isinstance(each.parent(node), (cst.AssignTarget, cst.AnnAssign, cst.AugAssign))
    ]
    return len(lines) == 1


def _is_given(
    parameter: str | None,
    place: Place,
    makes: cst.FunctionDef | None,
    facts: LoopFacts,
    site: Site | None,
    depth: int = 4,
) -> bool:
    """Return whether each call of a function gives it the scaler, from where that is made or is given itself."""
    calls = facts.flow.callers.of(place.function) if place.function is not None and depth else ()
    for file, call in calls:
        assert place.function is not None
        if site is not None and isinstance(place, Step) and not may_give(call, file, place, site, facts):
            continue
        arg = facts.flow.given(call, place.function, parameter or "", file)
        if arg is None or not of_kind(facts.flow.values(arg.value, file), Kind.SCALER):
            return False
        caller = Place(file, call)
        if caller.function is not makes and not _is_given(dotted(arg.value), caller, makes, facts, None, depth - 1):
            return False
    return bool(calls)


def may_give(call: cst.Call, file: SourceFile, step: Step, site: Site, facts: LoopFacts) -> bool:
    """Return whether a call of the function of a step may give it the optimizer of a site."""
    if step.function is None or not isinstance(step.owner, cst.Name):
        return True
    arg = facts.flow.given(call, step.function, step.owner.value, file)
    held = of_kind(facts.flow.values(arg.value, file), Kind.OPTIMIZER) if arg is not None else frozenset()
    return not held or bool(held & site.optimizers)


def _branches(place: Place) -> dict[str, tuple[cst.BaseExpression, bool]]:
    """Return the names that are tested around a place, and whether it runs where they hold and are not None."""
    found: dict[str, tuple[cst.BaseExpression, bool]] = {}
    for test, holds in tests_around(place.file, place.node):
        tested, is_present = _tested(test)
        name = dotted(tested)
        if name is not None:
            found.setdefault(name, (tested, holds is is_present))
    return found


def _tested(test: cst.BaseExpression) -> tuple[cst.BaseExpression, bool]:
    """Return what a test is about, and whether it holds where that is there."""
    if isinstance(test, cst.Comparison) and len(test.comparisons) == 1:
        (target,) = test.comparisons
        if dotted(target.comparator) == "None" and isinstance(target.operator, (cst.Is, cst.IsNot)):
            return test.left, isinstance(target.operator, cst.IsNot)
    return test, True


def _condition_of(file: SourceFile, call: cst.Call) -> cst.BaseExpression | None:
    """Return what a scaler depends on: its ``enabled``, or the condition of the branch that makes it."""
    enabled = argument(call, None, "enabled")
    if enabled is not None:
        return enabled.value
    around = file.parent(call)
    if isinstance(around, cst.IfExp) and around.body is call and dotted(around.orelse) == "None":
        return around.test
    branch = branch_of(file, call)
    return branch.test if branch is not None else None


def branch_of(file: SourceFile, call: cst.Call) -> cst.If | None:
    """Return the ``if`` in whose body alone a scaler is made."""
    outer = file.parent(file.statement(call))
    branch = file.parent(outer) if isinstance(outer, cst.IndentedBlock) else None
    is_body = isinstance(branch, cst.If) and branch.body is outer
    return branch if is_body and isinstance(branch, cst.If) else None
