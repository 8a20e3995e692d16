"""Optimizers that a program makes under a condition: where it does not hold, there is no engine."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.decisions.plan import ProgramPlan
from ds_migrate.plain.recognition.facts import LoopFacts, Place, Refusal, Site, Step
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.branches import parting, tests_around
from ds_migrate.syntax.nodes import dotted, set_values
from ds_migrate.syntax.one_line import expression_text
from ds_migrate.syntax.source import SourceFile


def refuse_optional(plan: ProgramPlan) -> ProgramPlan:
    """Refuse backward passes that also run where the condition leaves out their optimizer, as for updates by hand."""
    return plan.refuse(
        [
            Refusal(
                Code.PLAIN_BACKWARD, backward.file, backward.node,
                f"this backward() runs whether {test} holds or not, and only one of the two has an optimizer",
                "make an optimizer in both: torch.optim.SGD(model.parameters(), lr) does p -= lr * p.grad",
            )
            for backward, steps in plan.fed.items()
            for test in sorted({test for step in steps for test, _ in tests_of_optimizer(step, backward, plan.facts)})
        ]
    )  # fmt: skip


def tests_of_optimizer(step: Step, place: Place, facts: LoopFacts) -> Iterator[tuple[str, bool]]:
    """Yield the conditions under which an optimizer is made and steps, and which are not around a place beside it.

    Each comes with whether it holds there.
    """
    if place.function is not step.function or place.file is not step.file:
        return
    for site in facts.sites:
        if not site.optimizers & step.optimizers or any(_is_instead(site, other) for other in facts.all_sites):
            continue
        is_optional = may_be_none(site) or bool(set_to_none(site, facts))
        made = _branches(site.statement, site.file) | (_asks_for(step) if is_optional else set())
        yield from made & _branches(step.node, step.file) - _branches(place.node, place.file)


def set_to_none(site: Site, facts: LoopFacts) -> list[cst.BaseExpression]:
    """Return where a file sets the variable of an optimizer to None."""
    return [
        target
        for line in site.file.nodes(cst.Assign, cst.AnnAssign)
        for target, value in set_values(line)
        if value is not None and dotted(value) == "None"
        and facts.flow.variable(target, site.file) == site.variable
    ]  # fmt: skip


def may_be_none(site: Site) -> bool:
    """Return whether a condition chooses between an optimizer and None: ``SGD(...) if args.train else None``."""
    return any(
        isinstance(outer, cst.IfExp) and "None" in (dotted(outer.body), dotted(outer.orelse))
        for file, maker in site.makers if file is site.file
        for outer in file.ancestors(maker)
    )  # fmt: skip


def _asks_for(step: Step) -> set[tuple[str, bool]]:
    """Return the conditions that hold where there is an optimizer to step."""
    owner = expression_text(step.owner)
    return {(owner, True), (f"{owner} is not None", True), (f"{owner} is None", False), (f"not {owner}", False)}


def _is_instead(site: Site, other: Site) -> bool:
    """Return whether another optimizer is made where the condition of one does not hold."""
    return site.file is other.file and parting(site.file, site.statement, other.statement) is not None


def _branches(node: cst.CSTNode, file: SourceFile) -> set[tuple[str, bool]]:
    """Return the conditions around a node, each with whether the node is in the branch where it holds."""
    return {(expression_text(test), holds) for test, holds in tests_around(file, node)}
