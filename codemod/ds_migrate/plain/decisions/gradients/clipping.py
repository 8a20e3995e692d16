"""Clipping of gradients that moves to the config of its engine."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import libcst as cst

from ds_migrate.plain.dataflow.branches.blocks import block_path
from ds_migrate.plain.dataflow.moved_expressions import at_statement
from ds_migrate.plain.dataflow.values import Kind, Value, Values
from ds_migrate.plain.decisions.gradients.averaging import find_averagings, find_behind_backward, steps_one_optimizer
from ds_migrate.plain.decisions.gradients.given_together import are_given_together
from ds_migrate.plain.decisions.gradients.gradient_changes import acting_changes
from ds_migrate.plain.decisions.gradients.gradient_reads import is_read_between
from ds_migrate.plain.decisions.passes.backward_passes import places_beside, step_places
from ds_migrate.plain.decisions.plan import Averaging, ProgramPlan
from ds_migrate.plain.recognition.facts import Clip, Place, Refusal, Site, Step
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.one_line import expression_text


def decide_clipping(plan: ProgramPlan) -> ProgramPlan:
    """Move each clipping to the config where it is of all that an engine holds, at each step, and the only change.

    Elsewhere it stays, on averaged gradients, or is refused.
    """
    moved: dict[Site, tuple[Clip, str]] = {}
    removed: list[Clip] = []
    left: list[Clip] = []
    for clip in plan.facts.operations.clips:
        places = [place for site in plan.facts.sites for place in places_beside(clip, site, plan)]
        after = [(place, step) for place, step in places if place.position > clip.position]
        norms = _norms(plan, clip, *min(after, key=lambda pair: pair[0].position)) if after else {}
        if norms and all(site not in moved or moved[site][1] == norm for site, norm in norms.items()):
            moved |= {site: (clip, norm) for site, norm in norms.items()}
            removed.append(clip)
        else:  # without a step after it, a helper clips its argument
            left.append(clip)
    for site in list(moved):
        steps = step_places(site, plan)
        clipped = [c for c in removed if c.modules & site.of]
        if len(clipped) < len(steps):  # some steps do not clip
            left += [c for c in clipped if c not in left]
            del moved[site]
            removed = [r for r in removed if r not in clipped]
    if left or next(acting_changes(plan), None) is not None:
        # The engine clips in step(), behind everything that stays.
        left, removed, moved = [*left, *removed], [], {}
    norms = {site: norm for site, (_, norm) in moved.items()}
    averagings = {
        clip: find_averagings(clip, plan, _modules(plan, clip)) or _averaged_by_the_one_engine(clip, plan)
        if _is_of_one_engine(plan, clip)
        else []
        for clip in (() if plan.is_managed else left)
    }
    plan = replace(
        plan, clip_norms=norms, removed=[*plan.removed, *removed],
        averagings=[*plan.averagings, *chain.from_iterable(averagings.values())],
    )  # fmt: skip
    return plan.refuse(_refusal(clip) for clip, found in averagings.items() if not found)


def _modules(plan: ProgramPlan, clip: Clip) -> Values:
    """Return the modules whose gradients a clipping changes; where it does not name them, those of steps beside it."""
    steps = [step for step, _ in plan.steps if step.file is clip.file and step.function is clip.function]
    sites = [site for site in plan.facts.sites if any(site.optimizers & step.optimizers for step in steps)]
    clipped = frozenset(whole for module in clip.modules for whole in _wholes(module, plan))
    return clipped or frozenset(value for site in sites for value in site.of)


def _wholes(module: Value, plan: ProgramPlan) -> list[Value]:
    """Return the modules to which a part belongs that an engine holds, alone or with the other parts; else itself."""
    holders = [
        site for site in plan.facts.sites
        if not site.parts or any(f"{module.name}.".startswith(f"{part.name}.") for part in site.parts.values())
    ]  # fmt: skip
    wholes = [value for site in holders for value in site.of if value.key == module.key]
    return wholes if module.kind is Kind.PART and wholes else [module]


def _averaged_by_the_one_engine(clip: Clip, plan: ProgramPlan) -> list[Averaging]:
    """Return where the engine averages what a function clips behind a backward pass, for steps elsewhere."""
    return find_behind_backward(clip, plan) if len(plan.facts.sites) == 1 else []


def _norms(plan: ProgramPlan, clip: Clip, place: Place, step: Step) -> dict[Site, str]:
    """Return the norm that each engine of a step clips at; nothing where one of them does not clip exactly that."""
    guard = guard_of(clip) or clip.node
    is_apart = plan.overlaps or step.is_own
    if clip.norm is None or is_apart or block_path(guard, clip.file) != block_path(place.node, place.file):
        return {}
    if any(b.function is clip.function and clip.position < b.position < place.position for b in plan.fed):
        return {}  # it clips what the step before has used
    if is_read_between(Place(clip.file, clip.node), place, plan):
        return {}  # the engine clips in step(), behind these
    sites = [s for s in plan.facts.sites if s.optimizers & step.optimizers]
    if len(sites) == 1:
        is_all = clip.modules == sites[0].of and step.optimizers <= sites[0].optimizers
    else:
        is_all = are_given_together(clip, step, plan)
    norms: dict[Site, str] = {}
    is_all &= not any(site.is_partial or site.is_changed or site.clause for site in sites)
    for site in sites if is_all else ():
        norm = at_statement(clip.norm, clip.file, site.statement, site.file, plan.facts.flow)
        if norm is None:
            return {}
        norms[site] = f"{norm} or 0.0" if has_optional_norm(clip) else norm
    return norms


def _is_of_one_engine(plan: ProgramPlan, clip: Clip) -> bool:
    """Return whether a function that steps several optimizers clips, in each call, the module of the one it steps.

    Steps of optimizers in containers do not matter: each engine has another name, by which it averages its gradients.
    """
    shared = [
        step for step, name in plan.steps
        if step.file is clip.file and step.function is clip.function and (name or steps_one_optimizer(step))
        and len([site for site in plan.facts.sites if site.optimizers & step.optimizers]) > 1
    ]  # fmt: skip
    return all(are_given_together(clip, step, plan) for step in shared)


def _refusal(clip: Clip) -> Refusal:
    return Refusal(
        Code.PLAIN_CLIPPING, clip.file, clip.node,
        "this clipping cannot become gradient_clipping, and left here it would act before gradients are averaged over "
        "ranks",
        "clip all parameters of one optimizer by their norm right before its step()",
    )  # fmt: skip


def guard_of(clip: Clip) -> cst.If | None:
    """Return the ``if`` around a clipping that asks no more than whether its norm is above zero."""
    guard = next((a for a in clip.file.ancestors(clip.node) if isinstance(a, cst.BaseCompoundStatement)), None)
    if not isinstance(guard, cst.If) or guard.orelse is not None or clip.norm is None:
        return None
    around = clip.file.parent(guard)
    if isinstance(around, cst.If) and around.orelse is guard:
        return None
    norm = expression_text(clip.norm)
    return guard if expression_text(guard.test) == norm or _is_compared_with_zero(guard.test, norm) else None


def has_optional_norm(clip: Clip) -> bool:
    """Return whether the norm may be None, as far as the condition around the clipping shows."""
    guard = guard_of(clip)
    return guard is not None and not isinstance(guard.test, cst.Comparison)


def _is_compared_with_zero(test: cst.BaseExpression, norm: str) -> bool:
    if not isinstance(test, cst.Comparison) or len(test.comparisons) != 1 or expression_text(test.left) != norm:
        return False
    (target,) = test.comparisons
    zero = target.comparator
    return (
        isinstance(target.operator, (cst.GreaterThan, cst.NotEqual))
        and isinstance(zero, (cst.Integer, cst.Float))
        and zero.evaluated_value == 0
    )
