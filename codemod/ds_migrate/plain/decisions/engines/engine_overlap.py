"""Optimizers that hold parameters of the same modules."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.decisions.plan import ProgramPlan
from ds_migrate.plain.recognition.facts import Refusal, Site
from ds_migrate.plain.recognition.parameters.module_values import are_called
from ds_migrate.rules.codes import Code


def decide_overlap(plan: ProgramPlan) -> ProgramPlan:
    """Give optimizers of separate parts engines of these parts.

    Where several may hold the same parameters, also one after the other, their engines clear no gradients:
    ``zero_grad()`` stays, and does.
    """
    parted: set[Site] = set()
    overlapping = [site for site in plan.facts.sites if site.is_changed]
    for first, site in combinations(plan.facts.sites, 2):
        if _are_apart(first, site) and not _may_share(first, site, plan.facts.flow):
            parted |= {first, site}
            continue
        if any(plan.facts.flow.copies.may_be_one(one, other) for one in site.of for other in first.of):
            overlapping += [first, site]
    if overlapping and not plan.facts.options.runtime:
        return plan.refuse([_needs_runtime(overlapping[-1])])
    parted |= {site for site in overlapping if site.parts}
    flow = plan.facts.flow
    pipelines = [site for site in plan.facts.sites if of_kind(site.of, Kind.OBJECT) == site.of]  # may be no modules
    parted |= {site for site in pipelines if are_called(frozenset(site.parts.values()), flow)}
    return replace(plan, parted=frozenset(parted), overlaps=bool(overlapping))


def _needs_runtime(site: Site) -> Refusal:
    if site.is_changed:
        return Refusal(
            Code.PLAIN_ENGINE, site.file, site.target,
            "the optimizer is replaced, or gets further groups, and DeepSpeed alone clears gradients beside its own",
            "leave out --no-runtime",
        )  # fmt: skip
    return Refusal(
        Code.PLAIN_ENGINE, site.file, site.target,
        "two optimizers hold parameters of one module, and DeepSpeed alone clears the gradients of both in a step",
        "use one optimizer with several parameter groups, or leave out --no-runtime",
    )  # fmt: skip


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
        for file, node in flow.nodes(cst.Attribute)
    )
