"""Optimizers that hold parts of one module: each needs an engine whose gradients no other one touches."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.decisions.plan import ProgramPlan
from ds_migrate.plain.recognition.facts import LoopFacts, Refusal, Site
from ds_migrate.rules.codes import Code


def decide_overlap(plan: ProgramPlan) -> ProgramPlan:
    """Give optimizers of separate parts engines of these parts; refuse those whose modules may be the same."""
    parted: set[Site] = set()
    for first, site in combinations(plan.facts.sites, 2):
        if _are_apart(first, site) and not _may_share(first, site, plan.facts.flow):
            parted |= {first, site}
        elif (refusal := _overlap(first, site, plan.facts)) is not None:
            return plan.refuse([refusal])
    return replace(plan, parted=frozenset(parted))


def _overlap(first: Site, site: Site, facts: LoopFacts) -> Refusal | None:
    for value in site.of:
        if not any(facts.flow.copies.may_be_one(value, other) for other in first.of):
            continue
        if facts.callers.may_make_several(value, facts.flow):
            return Refusal(
                Code.PLAIN_ENGINE, facts.flow.file(value), facts.flow.node(value),
                "this one call makes the modules of several optimizers, and which of them each optimizer holds is "
                "unknown",
                "make each of them by a separate call: a class for each, or a function that is called once",
            )  # fmt: skip
        return Refusal(
            Code.PLAIN_ENGINE, site.file, site.target,
            "two optimizers hold parameters of one module, and an engine clears the gradients of its whole module",
            "use one optimizer with several parameter groups, or one module for each optimizer",
        )  # fmt: skip
    return None


def _are_apart(one: Site, other: Site) -> bool:
    """Return whether two optimizers hold different parts of one module, none inside of another."""
    paths = [[(part.key, *part.name.split(".")) for part in site.parts.values()] for site in (one, other)]
    return all(paths) and not any(
        "[" in "".join(map(str, (*a, *b))) or a[: len(b)] == b[: len(a)] for a in paths[0] for b in paths[1]
    )


def _may_share(one: Site, other: Site, flow: Flow) -> bool:
    """Return whether parts of a module may have parameters in common: one is given to something else, or tied."""
    names = {name for site in (one, other) for part in site.parts.values() for name in part.name.split(".")}
    return any(
        (isinstance(file.parent(node), cst.AssignTarget) and node.attr.value in ("weight", "bias"))
        or (isinstance(file.parent(node), (cst.Arg, cst.Assign, cst.Element)) and node.attr.value in names)
        for file in flow.files.values()
        for node in file.nodes(cst.Attribute)
    )
