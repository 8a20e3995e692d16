"""The GradScaler of a program: its engine uses the program's own one, as it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import libcst as cst

from ds_migrate.plain.dataflow.values import Kind, Values, of_kind
from ds_migrate.plain.decisions.averaging import find_averagings
from ds_migrate.plain.decisions.plan import ProgramPlan, ScalerUse
from ds_migrate.plain.decisions.scaler_attachment import find_makers, place_attachments
from ds_migrate.plain.decisions.scaler_branches import is_unscaled_branch
from ds_migrate.plain.decisions.scaler_calls import calls_of_engine, check_unknown
from ds_migrate.plain.decisions.scaler_errors import InexactScalingError
from ds_migrate.plain.recognition.facts import Backward, Refusal, Step
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import walk


def decide_scaling(plan: ProgramPlan) -> ProgramPlan:
    """Choose where the engine gets the scaler, and which of the scaler's calls go; refuse what is not exact so."""
    backwards = (*(backward for backward, _ in plan.backwards), *plan.left)
    operations: list[Step | Backward] = [*plan.facts.operations.steps, *backwards]
    scaled = [place for place in operations if place.scaler is not None]
    try:
        check_unknown(operations, plan.facts)
        if not scaled:
            return plan
        if len(plan.facts.sites) != 1:
            raise InexactScalingError(
                "a GradScaler serves several optimizers, and each engine's step() would update it",
                scaled[0].file, scaled[0].node,
                "give all parameters to one optimizer, or use torch.autocast with bfloat16, which needs no scaler",
            )  # fmt: skip
        own = frozenset(
            value for place in scaled if place.scaler is not None
            for value in of_kind(plan.facts.flow.values(place.scaler, place.file), Kind.SCALER)
        )  # fmt: skip
        plan = _give_scaler(plan, own, scaled, [place for place in operations if place.scaler is None])
        removed, kept = calls_of_engine(plan, own, scaled)
        averagings = [averaging for place in kept for averaging in find_averagings(place, plan)]
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
    attachments = place_attachments(makers, site, facts.flow, facts.callers) if not site.again else []
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
    for use in uses:
        if use.scaler is not None and any(isinstance(node, cst.Call) for node in walk(use.scaler)):
            raise InexactScalingError(
                "the engine cannot get the GradScaler: no name leads to it", use.backward.file, use.backward.node,
                "keep it in a name or in an attribute",
            )  # fmt: skip
    return replace(plan, scaler_uses=uses)


def _is_consistent(plan: ProgramPlan) -> bool:
    """Return whether each step uses gradients of scaled losses where it unscales them, and of others where not."""
    stepped = {id(step) for steps in plan.fed.values() for step in steps}
    return (
        not plan.left
        and all(id(step) in stepped for step, _ in plan.steps)
        and all(
            (backward.scaler is None) == (step.scaler is None) for backward, steps in plan.fed.items() for step in steps
        )
    )
