"""DistributedDataParallel, whose work an engine does: gradients that are averaged later, buffers of rank 0."""

from __future__ import annotations

from dataclasses import replace

import libcst as cst

from ds_migrate.plain.dataflow.torch_names import DISTRIBUTED
from ds_migrate.plain.decisions.plan import Note, ProgramPlan
from ds_migrate.plain.recognition.facts import LoopFacts, Refusal, Site
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import argument, dotted
from ds_migrate.syntax.source import SourceFile


def decide_no_sync(plan: ProgramPlan) -> ProgramPlan:
    """Leave out that gradients are averaged later, where the engine averages them at the step in any case.

    ``join()``, by which ranks wait for no other, has no counterpart.
    """
    files = {id(file): file for file, _ in plan.facts.functions}
    no_syncs = [
        (file, node)
        for file in files.values()
        for node in file.attributes_by_name.get("no_sync", ())
        if not _is_option(node, file)
    ]
    refusals = [
        Refusal(
            Code.PLAIN_DISTRIBUTED, file, node, "no_sync() keeps the gradients of a whole step from being averaged",
            "leave it out where a step follows, or the weights of ranks part",
        )
        for file, node in no_syncs
        if plan.is_managed
    ]  # fmt: skip
    joins = [
        (file, node)
        for file in files.values()
        for node in file.attributes_by_name.get("join", ())
        if any(plan.facts.flow.values(node.value, file) & site.of for site in plan.facts.sites)
    ]
    notes = [
        Note(
            Code.PLAIN_DISTRIBUTED, file, node,
            "join() is removed: ranks with more batches than others now wait for these without end",
            "give each rank as many batches, as DistributedSampler does",
        )
        for file, node in joins
    ]  # fmt: skip
    return replace(plan, no_syncs=no_syncs, joins=joins, notes=[*plan.notes, *notes]).refuse(refusals)


def _is_option(node: cst.Attribute, file: SourceFile) -> bool:
    """Return whether an attribute is tested, as an option of the command line: ``args.no_sync``."""
    around = file.parent(node)
    is_tested = isinstance(around, (cst.If, cst.IfExp, cst.While)) and around.test is node
    return is_tested or isinstance(around, (cst.UnaryOperation, cst.BooleanOperation, cst.Comparison))


def broadcasts_buffers(site: Site, facts: LoopFacts) -> bool:
    """Return whether DistributedDataParallel gave all ranks the buffers of rank 0."""
    for file in facts.flow.files.values():
        for call in file.nodes(cst.Call):
            if not facts.flow.is_call_of(call, file, DISTRIBUTED) or not facts.flow.values(call, file) & site.of:
                continue
            kept = argument(call, None, "broadcast_buffers")
            if kept is None or dotted(kept.value) != "False":
                return True
    return False
