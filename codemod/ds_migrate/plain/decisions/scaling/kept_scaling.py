"""GradScalers that stay the program's: it scales losses and updates the scale, and several engines step with them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, Values, of_kind
from ds_migrate.plain.decisions.plan import Attachment, ProgramPlan, ScalerUse
from ds_migrate.plain.decisions.scaling.scaler_attachment import find_makers, place_attachments
from ds_migrate.plain.decisions.scaling.scaler_branches import InexactScalingError, is_unscaled_branch, may_give
from ds_migrate.plain.recognition.facts import Backward, LoopFacts, Site, Step
from ds_migrate.syntax.nodes import dotted, parameters, walk


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
