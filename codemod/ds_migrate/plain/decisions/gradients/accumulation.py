"""Accumulation: an engine counts the steps of a loop itself where it can: each of them follows one backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ds_migrate.plain.dataflow.branches.blocks import block_path
from ds_migrate.plain.decisions.gradients.gradient_paths import GradientPaths
from ds_migrate.plain.decisions.plan import LOOKED_UP, ProgramPlan
from ds_migrate.plain.recognition.facts import Backward, LoopFacts, Step


def decide_accumulation(plan: ProgramPlan, paths: Sequence[GradientPaths]) -> ProgramPlan:
    """Let the engine manage accumulation where there is one, and each backward pass is used by one step.

    An engine around an ``EngineModule`` cannot: its forward passes go past it.
    """
    is_apart = plan.left or plan.steps_elsewhere or (len(paths) == 1 and paths[0].unused)
    is_apart = is_apart or any(site.is_changed or site.tensors for site in plan.facts.sites)
    is_apart = is_apart or any(name is LOOKED_UP or step.is_own for step, name in plan.steps)
    is_managed = len(plan.facts.sites) == 1 and not is_apart and _are_pairs(plan.facts)
    return replace(plan, is_managed=is_managed)


def _are_pairs(facts: LoopFacts) -> bool:
    """Return whether each step of each function follows exactly one backward pass in the same block."""
    for file, function in facts.functions:
        operations: list[Step | Backward] = [*facts.operations.steps, *facts.operations.backwards]
        own = [place for place in operations if place.file is file and place.function is function]
        events = sorted(own, key=lambda event: event.position)
        if len(events) % 2 or any(isinstance(e, Backward) and e.retains_graph is not None for e in events):
            return False
        for backward, step in zip(events[::2], events[1::2], strict=True):
            if not isinstance(backward, Backward) or not isinstance(step, Step):
                return False
            if block_path(backward.node, file) != block_path(step.node, file):
                return False
    return True
