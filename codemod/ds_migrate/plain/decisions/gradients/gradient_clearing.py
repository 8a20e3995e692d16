"""Calls of ``zero_grad()`` that an engine's step makes superfluous, and gradients that are used after it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import libcst as cst

from ds_migrate.plain.dataflow.branches.blocks import block_path
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.decisions.gradients.gradient_paths import GradientPaths, follow_gradients
from ds_migrate.plain.decisions.plan import LOOKED_UP, Note, ProgramPlan
from ds_migrate.plain.recognition.facts import Backward, Place, Refusal, Site, Step, ZeroGrad
from ds_migrate.plain.recognition.steps.operations import is_set_to_none, is_set_to_zero
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import argument, is_literal
from ds_migrate.syntax.source import SourceFile


def follow_all(plan: ProgramPlan) -> list[GradientPaths]:
    """Follow the gradients of each optimizer."""
    return [_follow(site, plan) for site in plan.facts.sites]


def _follow(site: Site, plan: ProgramPlan) -> GradientPaths:
    facts = plan.facts
    steps = [step for step in facts.operations.steps if step.optimizers & site.optimizers]
    fed = [b for b, used in plan.fed.items() if any(step in steps for step in used)]
    functions = {id(step.function) for step in steps}
    # One loss may be stepped by several optimizers, and only the first one is known as its.
    left = [b for b in plan.left if not (plan.keeps_scaling and b in plan.fed)]
    backwards = [*(fed or (b for b in plan.fed if id(b.function) in functions)), *left]
    zeros = [zero for zero in facts.operations.zero_grads if _clears(zero, site)]

    def is_of_other(file: SourceFile, call: cst.Call) -> bool:
        given = {v for arg in call.args for v in of_kind(facts.flow.values(arg.value, file), Kind.OPTIMIZER)}
        return bool(given) and not given & site.optimizers

    return follow_gradients([*steps, *backwards, *zeros], facts.flow.files.values(), facts.flow.callers, is_of_other)


def decide_clearing(plan: ProgramPlan, paths: Sequence[GradientPaths]) -> ProgramPlan:
    """Remove the calls that clear what a step has used, unless the gradients are used again after it."""
    stepped = [step for path in paths for step in path.used_again]
    notes = [
        Note(
            Code.PLAIN_ZERO_GRAD, step.file, step.node,
            "no zero_grad() stands between this step() and the next backward(), so gradients add up over steps; they "
            "still do",
            "call zero_grad() once for each step(), if that is not meant",
        )
        for path in paths if not _clears_by_hand(plan)
        for step in path.stepped_again
    ]  # fmt: skip
    used_again = [*_gradients_read_late(plan), *((step.file, step.node) for step in stepped)]
    if plan.facts.options.runtime:
        used_again += [(zero.file, zero.node) for zero in _cleared(plan) if _leaves_zeros(zero)]
    may_be_several = _may_be_several(plan)
    is_kept = bool(used_again) or plan.overlaps or may_be_several
    plan = replace(plan, keeps_gradients=is_kept, notes=(*plan.notes, *notes))
    if used_again:
        if plan.facts.options.runtime:
            return plan
        file, node = used_again[0]
        refusal = Refusal(
            Code.PLAIN_ZERO_GRAD, file, node,
            "engine.step() clears the gradients that are used again here, and only match_torch() lets it keep them",
            "read them before step(), and call zero_grad() once for each step(), or leave out --no-runtime",
        )  # fmt: skip
        return plan.refuse([refusal])
    if plan.left or plan.overlaps or may_be_several or any(step.is_own for step, _ in plan.steps):
        return plan
    own = {file for site in plan.facts.sites for file in (site.file, *(file for file, _ in site.makers))}
    own |= {step.file for step, _ in plan.steps}  # elsewhere it does no harm
    cleared = [zero for zero in _cleared(plan) if zero.file in own and not zero.is_loop]
    removed = [zero for zero in cleared if plan.is_managed or _follows_step(zero, plan)]
    return replace(plan, removed=(*plan.removed, *removed))


def _may_be_several(plan: ProgramPlan) -> bool:
    """Return whether one call may make several optimizers, whose gradients are followed as those of one."""
    is_looked_up = any(name is LOOKED_UP for _, name in plan.steps)
    return bool(plan.names.in_modules) or any(
        is_looked_up and plan.facts.flow.callers.may_make_several(value)
        for site in plan.facts.sites
        for value in site.optimizers
    )


def _cleared(plan: ProgramPlan) -> list[ZeroGrad]:
    return [zero for zero in plan.facts.operations.zero_grads if any(_clears(zero, site) for site in plan.facts.sites)]


def _leaves_zeros(zero: ZeroGrad) -> bool:
    """Return whether a call may leave gradients of zero, by which a step moves what no backward pass has reached."""
    given = argument(zero.call, 0, "set_to_none") if not zero.is_loop else None
    return given is not None and not is_literal(given.value, "True")


def _clears(zero: ZeroGrad, site: Site) -> bool:
    modules = of_kind(zero.values, Kind.MODULE, Kind.OBJECT, Kind.INSTANCE)  # an instance: self in a module
    return bool(zero.values & site.optimizers or modules & site.of)


def _gradients_read_late(plan: ProgramPlan) -> Iterator[tuple[SourceFile, cst.CSTNode]]:
    """Yield where the program reads gradients, or changes them, other than between backward() and step()."""
    flow = plan.facts.flow
    for file, node in flow.attributes("grad"):
        is_function = of_kind(flow.values(node.value, file), Kind.EXTERNAL)  # torch.autograd.grad
        is_other = bool(is_function) or plan.facts.operations.is_attacked(node.value, file)
        if not (is_other or is_set_to_none(node, file) or _is_between(Place(file, node), plan)):
            yield file, node


def _clears_by_hand(plan: ProgramPlan) -> bool:
    """Return whether the program clears gradients otherwise than by ``zero_grad()``, as by ``p.grad.zero_()``."""
    for file, node in plan.facts.flow.attributes("grad"):
        around = file.parent(node)
        while isinstance(around, cst.Attribute) and around.attr.value != "zero_":
            around = file.parent(around)
        if isinstance(around, cst.Attribute) or is_set_to_none(node, file) or is_set_to_zero(node, file):
            return True
    return False


def _events(place: Place, plan: ProgramPlan) -> list[Step | Backward]:
    """Return the steps and backward passes in the function of a place."""
    events: list[Step | Backward] = [*plan.facts.operations.steps, *plan.fed]
    return [e for e in events if e.file is place.file and e.function is place.function]


def _is_between(place: Place, plan: ProgramPlan, depth: int = 4) -> bool:
    """Return whether a place is behind a backward() and before the step() that uses its gradients."""
    events = _events(place, plan)
    if not events and place.function is not None and depth:
        calls = [Place(file, call) for file, call in plan.facts.flow.callers.of(place.function)]
        return bool(calls) and all(_is_between(call, plan, depth - 1) for call in calls)
    before = max((e for e in events if e.position < place.position), key=lambda e: e.position, default=None)
    after = min((e for e in events if e.position > place.position), key=lambda e: e.position, default=None)
    return isinstance(before, Backward) and isinstance(after, Step)


def _follows_step(zero: ZeroGrad, plan: ProgramPlan) -> bool:
    """Return whether the call clears what the step before it, in the same block, has used: the engine does that."""
    optimizers = of_kind(zero.values, Kind.OPTIMIZER)
    before = [e for e in _events(zero, plan) if e.position < zero.position]
    last = max(before, key=lambda e: e.position, default=None)
    if not isinstance(last, Step) or block_path(last.node, last.file) != block_path(zero.node, zero.file):
        return False
    return bool(optimizers) and last.optimizers == optimizers
