"""The GradScaler of a program: its engine uses the program's own one, as it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import libcst as cst

from ds_migrate.plain.dataflow.branches.equal_tests import never_meet
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, Values, of_kind
from ds_migrate.plain.decisions.passes.backward_passes import is_beside
from ds_migrate.plain.decisions.plan import Attachment, ProgramPlan, ScalerUse
from ds_migrate.plain.decisions.scaling.scaler_attachment import find_makers, place_attachments
from ds_migrate.plain.decisions.scaling.scaler_branches import InexactScalingError, is_unscaled_branch, may_give
from ds_migrate.plain.decisions.scaling.scaler_calls import averagings_of, calls_of_engine, check_unknown
from ds_migrate.plain.recognition.facts import Backward, LoopFacts, Refusal, Site, Step
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import dotted, parameters, walk


def decide_scaling(plan: ProgramPlan) -> ProgramPlan:
    """Choose where the engine gets the scaler, and which of the scaler's calls go; refuse what is not exact so."""
    backwards = (*(backward for backward, _ in plan.backwards), *plan.left)
    operations: list[Step | Backward] = [*plan.facts.operations.steps, *backwards]
    scaled = [place for place in operations if place.scaler is not None]
    try:
        check_unknown(operations, plan.facts)
        if not scaled:
            return plan
        own = scalers_of(scaled, plan.facts.flow)
        if plan.keeps_scaling:
            plan = give_scalers(plan)
        else:
            own_of_torch = set(plan.left)  # it scales them no more than the program does
            others = [place for place in operations if place.scaler is None and place not in own_of_torch]
            plan = _give_scaler(plan, own, scaled, others)
        removed, kept = calls_of_engine(plan, own, scaled)
        averagings = [averaging for place in kept for averaging in averagings_of(place, plan)]
        return replace(plan, scaler_calls=removed, averagings=[*plan.averagings, *averagings])
    except InexactScalingError as error:
        return plan.refuse([Refusal(Code.PLAIN_PRECISION, error.file, error.node, str(error), error.way_out)])


def _give_scaler(
    plan: ProgramPlan, own: Values, scaled: Sequence[Step | Backward], others: Sequence[Step | Backward]
) -> ProgramPlan:
    """Give the engine the scaler where both are made, or before each backward pass where no name leads to both.

    Raises:
        InexactScalingError: it scales some losses and not the others, or no name leads to it.
    """
    facts = plan.facts
    makers = find_makers(own, facts.flow)
    (site,) = facts.sites
    attachments = place_attachments(makers, site, facts.flow) if not site.again else []
    mixed = [other for other in others if not is_unscaled_branch(other, scaled, makers, facts)]
    if attachments and not mixed:
        return replace(plan, attachments=attachments)
    for left in plan.left:
        if left.scaler is not None:
            raise InexactScalingError(
                "the engine cannot get the GradScaler of this backward()", left.file, left.node,
                "call scaler.scale(loss).backward() in the function that steps",
            )  # fmt: skip
    for other in mixed:
        if not _is_consistent(plan):
            raise InexactScalingError(
                "a GradScaler scales some losses or steps of this optimizer, and this one not",
                other.file, other.node, "make the scaler with enabled=<the condition>, and use it on every path",
            )  # fmt: skip
    uses = [ScalerUse(backward, name, backward.scaler) for backward, name in plan.backwards]
    check_names(uses)
    return replace(plan, scaler_uses=uses)


def _is_consistent(plan: ProgramPlan) -> bool:
    """Return whether each step uses gradients of scaled losses where it unscales them, and of others where not."""
    stepped = {id(step) for steps in plan.fed.values() for step in steps}
    pairs = [(backward, step) for backward, steps in plan.fed.items() for step in steps]
    further = [step for step, _ in plan.steps if id(step) not in stepped]  # as behind the loop, of the last batches
    if plan.left or not all(is_beside(backward, step) for step in further for backward in plan.fed):
        return False
    pairs += [(b, s) for s in further for b in plan.fed if not never_meet(s.file, b.node, s.node)]
    return all((backward.scaler is None) == (step.scaler is None) for backward, step in pairs)


def give_scalers(plan: ProgramPlan) -> ProgramPlan:
    """Give each engine its scaler where both are made, or all of them before each step where that cannot be.

    Raises:
        InexactScalingError: no name leads to a scaler, or it is none of torch's.
    """
    attachments: list[Attachment] = []
    for site in plan.facts.sites:
        found = _attachments(site, plan)
        if found is None:
            uses = [ScalerUse(step, name, step.scaler) for step, name in plan.steps]
            check_names(uses)
            return replace(plan, scaler_uses=uses)
        attachments += found
    return replace(plan, attachments=attachments)


def scalers_of(places: Iterable[Step | Backward], flow: Flow) -> Values:
    """Return the scalers of steps and backward passes."""
    return frozenset(
        value for place in places if place.scaler is not None
        for value in of_kind(flow.values(place.scaler, place.file), Kind.SCALER)
    )  # fmt: skip


def check_names(uses: Sequence[ScalerUse]) -> None:
    """Check that scalers are held by names.

    Raises:
        InexactScalingError: one is not.
    """
    for use in uses:
        if use.scaler is not None and any(isinstance(node, cst.Call) for node in walk(use.scaler)):
            raise InexactScalingError(
                "the engine cannot get the GradScaler: no name leads to it", use.place.file, use.place.node,
                "keep it in a name or in an attribute",
            )  # fmt: skip


def _attachments(site: Site, plan: ProgramPlan) -> list[Attachment] | None:
    """Return where the engine of a site is given its scaler for good; None where steps must give it."""
    facts = plan.facts
    steps = [step for step, _ in plan.steps if step.optimizers & site.optimizers]
    scaled = [step for step in steps if step.scaler is not None and not _is_never_given(step, site, facts)]
    if not scaled:
        return []
    makers = find_makers(scalers_of(scaled, facts.flow), facts.flow)
    found = place_attachments(makers, site, facts.flow) if not site.again else []
    others = [step for step in steps if step.scaler is None]
    if not found or not all(is_unscaled_branch(other, scaled, makers, facts, site) for other in others):
        return None
    return found


def _is_never_given(step: Step, site: Site, facts: LoopFacts) -> bool:
    """Return whether a function never gets a scaler together with the optimizer of a site."""
    function, scaler = step.function, step.scaler
    if function is None or not isinstance(scaler, cst.Name):
        return False
    defaults = {p.name.value: dotted(p.default) for p in parameters(function) if p.default is not None}
    calls = [each for each in facts.flow.callers.of(function) if may_give(each[1], each[0], step, site, facts)]
    given = [facts.flow.given(call, function, scaler.value, file) for file, call in calls]
    texts = [defaults.get(scaler.value) if arg is None else dotted(arg.value) for arg in given]
    return bool(calls) and all(text == "None" for text in texts)
