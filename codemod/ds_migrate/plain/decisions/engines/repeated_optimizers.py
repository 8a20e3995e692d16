"""Optimizers that are made several times for one module: for each epoch, each task, each phase of training."""

from __future__ import annotations

import libcst as cst

from ds_migrate.plain.recognition.facts import LoopFacts, Site
from ds_migrate.syntax.nodes import walk

_LOOPS = (cst.For, cst.While)


def is_made_again(site: Site, facts: LoopFacts) -> bool:
    """Return whether an optimizer may be made again for modules that live on: in a loop, or in a function called twice.

    Each time its engine is made again too. The one before may be left as it is at ZeRO stage 0 alone.
    """
    return any(_outlives(value_makers, site, facts) for value_makers in _makers(site, facts))


def _makers(site: Site, facts: LoopFacts) -> list[set[int]]:
    """Return, for each module, the calls that make it or lead to that, by identity."""
    copies = facts.flow.copies
    return [{id(facts.flow.node(v)), *(id(call) for _, call in copies.calls(v))} for v in site.of]


def _outlives(makers: set[int], site: Site, facts: LoopFacts) -> bool:
    """Return whether a module is made outside of what makes the optimizer several times."""
    file, function = site.file, site.function
    node: cst.CSTNode = site.statement
    reached: set[int] = set()
    while True:
        loops = [a for a in file.ancestors(node) if isinstance(a, _LOOPS) and file.function(a) is function]
        if any(not _holds(loop, makers) for loop in loops):
            return True
        if function is None or id(function) in reached or _holds(function, makers):
            return False
        reached.add(id(function))
        calls = facts.flow.callers.of(function)
        if len(calls) != 1:
            return facts.flow.callers.has_several(function)
        file, node = calls[0]
        function = file.function(node)


def _holds(node: cst.CSTNode, makers: set[int]) -> bool:
    return any(id(below) in makers for below in walk(node))
