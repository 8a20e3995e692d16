"""Gradients that a program reads by hand, as for a norm that it logs: they need to be averaged before."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.foreign_gradients import is_foreign_gradient
from ds_migrate.plain.dataflow.values import NOTHING, Kind, of_kind
from ds_migrate.plain.decisions.gradients.averaging import (
    LOOPS,
    before_next_step,
    find_behind_backward,
    in_stepping_functions,
    is_behind,
)
from ds_migrate.plain.decisions.passes.backward_passes import is_before_engine
from ds_migrate.plain.decisions.plan import Averaging, ProgramPlan
from ds_migrate.plain.recognition.batches.loaders import loaders_of
from ds_migrate.plain.recognition.facts import Place
from ds_migrate.plain.recognition.steps.operations import is_set_to_none
from ds_migrate.syntax.nodes import dotted, walk
from ds_migrate.syntax.source import SourceFile


def find_reads(plan: ProgramPlan) -> tuple[list[Averaging], list[Place]]:
    """Return where engines average gradients that the program reads by hand, as for a norm that it logs.

    Where none can, as in a function that goes back for the gradients alone, the reads are returned too.
    """
    found: list[Averaging] = []
    left: list[Place] = []
    for read, node in _reads(plan):
        places = in_stepping_functions(read, plan)
        later = [place for place in places if not is_before_engine(place, plan.facts.all_sites)]
        if places and not later:
            continue  # these are no gradients of an engine yet
        own = [each for place in later for each in before_next_step(place, plan, NOTHING)]
        own = own or find_behind_backward(read, plan)
        found += own
        if not own and _is_surely_of_parameter(read, node.value, plan) and _goes_back(read, plan):
            left.append(read)
    return found, left


def is_read_between(first: Place, second: Place, plan: ProgramPlan) -> bool:
    """Return whether a function reads gradients between two places in it, as for the norm that clipping has left."""
    return any(
        place.file is first.file and place.function is first.function
        and first.position < place.position < second.position
        for read, _ in _reads(plan)
        for place in in_stepping_functions(read, plan)
    )  # fmt: skip


def _reads(plan: ProgramPlan) -> Iterator[tuple[Place, cst.Attribute]]:
    """Yield where a program reads gradients that may be those of parameters."""
    engines = {value.key for site in plan.facts.sites for value in site.of}
    for file, node in plan.facts.flow.attributes("grad"):
        is_other = plan.facts.operations.is_attacked(node.value, file) or _is_tested(node, file)
        is_other = is_other or is_foreign_gradient(node, file, plan.facts.flow, engines)
        if not is_other and _is_of_parameter(node.value, file, plan.facts.flow):
            yield Place(file, node), node


def _is_of_parameter(owner: cst.BaseExpression, file: SourceFile, flow: Flow) -> bool:
    """Return whether a gradient may be that of a parameter, rather than of a batch."""
    values = flow.values(owner, file)
    if of_kind(values, Kind.EXTERNAL) or not isinstance(owner, cst.Name):
        return not of_kind(values, Kind.EXTERNAL)  # torch.autograd.grad
    loops = [
        loop for loop in flow.scopes(file).nodes(owner, *LOOPS)
        if owner.value in {dotted(part) for part in walk(loop.target)}
    ]  # fmt: skip
    return not loops or any(not loaders_of(loop.iter, file, flow) for loop in loops)


def _is_surely_of_parameter(read: Place, owner: cst.BaseExpression, plan: ProgramPlan) -> bool:
    """Return whether an expression names a part of a module, or what a loop goes through, rather than an input."""
    if not isinstance(owner, cst.Name):
        return True
    flow, modules = plan.facts.flow, {value.key for site in plan.facts.sites for value in site.of}
    loops = flow.scopes(read.file).nodes(owner, *LOOPS)
    is_looped = any(owner.value in map(dotted, walk(loop.target)) for loop in loops)
    return is_looped or any(part.key in modules for part in of_kind(flow.values(owner, read.file), Kind.PART))


def _is_tested(node: cst.Attribute, file: SourceFile) -> bool:
    """Return whether a gradient is just compared with None, or set to it."""
    around = file.parent(node)
    if is_set_to_none(node, file):
        return True
    return isinstance(around, cst.Comparison) and dotted(around.comparisons[0].comparator) == "None"


def _goes_back(read: Place, plan: ProgramPlan) -> bool:
    """Return whether a backward pass that no step uses is beside a read of gradients, or beside a call of either."""
    callers = plan.facts.flow.callers
    return any(
        is_behind(read, backward)
        or callers.leading_to(read.function, backward.file, backward.function)
        or callers.leading_to(backward.function, read.file, read.function)
        for backward in plan.left
    )
