"""The decisions on training loops, in the order in which they need each other."""

from __future__ import annotations

from ds_migrate.plain.decisions.engines.engine_overlap import decide_overlap
from ds_migrate.plain.decisions.engines.optional_engines import refuse_optional
from ds_migrate.plain.decisions.engines.program_engines import decide_engines
from ds_migrate.plain.decisions.gradients.accumulation import decide_accumulation
from ds_migrate.plain.decisions.gradients.clipping import decide_clipping
from ds_migrate.plain.decisions.gradients.gradient_changes import decide_changes
from ds_migrate.plain.decisions.gradients.gradient_clearing import decide_clearing, follow_all
from ds_migrate.plain.decisions.gradients.own_steps import decide_own_steps
from ds_migrate.plain.decisions.naming.engine_names import EngineNames
from ds_migrate.plain.decisions.passes.backward_passes import assign_backwards, name_steps
from ds_migrate.plain.decisions.passes.distributed import decide_no_sync, review_unwrapped
from ds_migrate.plain.decisions.passes.forward_passes import decide_forwards
from ds_migrate.plain.decisions.plan import ProgramPlan
from ds_migrate.plain.decisions.scaling.loss_scaling import decide_scaling
from ds_migrate.plain.decisions.without_runtime import refuse_inexact
from ds_migrate.plain.recognition.facts import LoopFacts
from ds_migrate.plain.recognition.libraries.foreign_engines import foreign_owners


def decide(facts: LoopFacts) -> ProgramPlan:
    """Return what is decided for training loops; ``refusals`` of the plan are why they stay as they are."""
    plan = ProgramPlan(facts, EngineNames(facts.sites, facts.flow))
    plan = name_steps(plan)
    plan = assign_backwards(plan)
    plan = refuse_optional(plan)
    owned = {value for site in facts.all_sites for value in (*site.of, *site.optimizers)}
    plan = plan.refuse(foreign_owners(owned, facts.flow))
    plan = decide_overlap(plan)
    if plan.refusals:
        return plan
    paths = follow_all(plan)
    plan = decide_accumulation(plan, paths)
    plan = decide_no_sync(plan)
    plan = review_unwrapped(plan)
    plan = decide_clipping(plan)
    plan = decide_scaling(plan)
    plan = decide_changes(plan)
    plan = decide_own_steps(plan)
    plan = decide_clearing(plan, paths)
    plan = decide_forwards(plan)
    plan = decide_engines(plan)
    return plan if facts.options.runtime else refuse_inexact(plan)
