"""Loops over several loaders that train under a condition which cannot be followed: they may evaluate some of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import libcst as cst

from ds_migrate.plain.decisions.plan import Note
from ds_migrate.plain.recognition.batches.loader_rounds import is_of_batch
from ds_migrate.plain.recognition.batches.loaders import loaders_of
from ds_migrate.plain.recognition.facts import Backward, LoopFacts
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.branches import upwards
from ds_migrate.syntax.nodes import walk


def undecided_training(makers: Collection[int], facts: LoopFacts) -> Iterator[Note]:
    """Yield a note for each loop over several divided loaders whose backward pass is under a condition on no batch.

    Args:
        makers: the calls whose loaders are divided, by identity.
    """
    seen = set[int]()
    for backward in facts.operations.backwards:
        conditions = list[cst.If]()
        for inner, outer in upwards(backward.file, backward.node):
            if isinstance(outer, cst.FunctionDef):
                break
            if isinstance(outer, cst.If) and inner is not outer.test:
                conditions.append(outer)
            if isinstance(outer, cst.For):
                found = {id(facts.flow.node(v)) for v in loaders_of(outer.iter, backward.file, facts.flow)}
                asked = [one for one in conditions if not is_of_batch(one.test, outer, backward.file)]
                asked = [one for one in asked if not _trains_in_both(one, backward, facts)]
                if len(found & set(makers)) > 1 and asked and id(outer) not in seen:
                    seen.add(id(outer))
                    message = "a condition decides whether this trains: it may evaluate a rank's share of a loader"
                    advice = "call its function with True or False, as written, or reduce the metrics over ranks"
                    yield Note(Code.PLAIN_SAMPLER, backward.file, asked[-1].test, message, advice)


def _trains_in_both(condition: cst.If, backward: Backward, facts: LoopFacts) -> bool:
    """Return whether the other branch of a condition has a backward pass, too."""
    others = {id(one.node) for one in facts.operations.backwards if one is not backward}
    inside = {id(part) for part in walk(condition.body)}
    other = condition.orelse if id(backward.node) in inside else condition.body
    return other is not None and any(id(part) in others for part in walk(other))
