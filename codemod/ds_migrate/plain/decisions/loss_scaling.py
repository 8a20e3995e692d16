"""The GradScaler of a program: its engine uses the program's own one, as it is."""

from __future__ import annotations

from dataclasses import replace

from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.decisions.plan import ProgramPlan
from ds_migrate.plain.decisions.scaler_attachment import find_makers, place_attachments
from ds_migrate.plain.decisions.scaler_branches import is_unscaled_branch
from ds_migrate.plain.decisions.scaler_calls import calls_of_engine, check_unknown
from ds_migrate.plain.decisions.scaler_errors import InexactScalingError
from ds_migrate.plain.recognition.facts import Backward, Refusal, Step
from ds_migrate.rules.codes import Code


def decide_scaling(plan: ProgramPlan) -> ProgramPlan:
    """Choose where the engine gets the scaler, and which of the scaler's calls go; refuse what is not exact so."""
    operations: list[Step | Backward] = [*plan.facts.operations.steps, *(backward for backward, _ in plan.backwards)]
    scaled = [place for place in operations if place.scaler is not None]
    others = [place for place in operations if place.scaler is None]
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
        makers = find_makers(own, plan.facts.flow)
        plan = replace(plan, attachments=place_attachments(makers, plan.facts.sites[0], scaled[0]))
        for other in others:
            if not is_unscaled_branch(other, scaled, makers, plan.facts):
                raise InexactScalingError(
                    "a GradScaler scales some losses or steps of this optimizer, and this one not",
                    other.file, other.node, "make the scaler with enabled=<the condition>, and use it on every path",
                )  # fmt: skip
        return replace(plan, scaler_calls=calls_of_engine(plan, own, scaled))
    except InexactScalingError as error:
        return plan.refuse([Refusal(Code.PLAIN_PRECISION, error.file, error.node, str(error), error.way_out)])
