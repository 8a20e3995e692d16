"""DistributedDataParallel, whose work an engine does: averaged gradients, buffers of rank 0, and what it leaves out."""

from __future__ import annotations

from dataclasses import replace

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.torch_names import DISTRIBUTED
from ds_migrate.plain.dataflow.values import Kind, Value, Values, of_kind
from ds_migrate.plain.decisions.plan import Note, ProgramPlan
from ds_migrate.plain.recognition.facts import LoopFacts, Refusal, Site
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import argument, dotted, last_name
from ds_migrate.syntax.source import SourceFile

_SWITCH = "require_backward_grad_sync"


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
    sync_switches = [
        (file, line)
        for file in files.values()
        for node in file.attributes_by_name.get(_SWITCH, ())
        if (line := _switch(node, file))
        and any(plan.facts.flow.values(node.value, file) & s.of for s in plan.facts.sites)
    ]
    unaveraged: list[tuple[SourceFile, cst.CSTNode, str]] = [(file, node, "no_sync()") for file, node in no_syncs]
    unaveraged += [(f, line, f"{_SWITCH} = False") for f, line in sync_switches if dotted(line.value) != "True"]
    refusals = [
        Refusal(
            Code.PLAIN_DISTRIBUTED, file, node, f"{text} keeps the gradients of a whole step from being averaged",
            "leave it out where a step follows, or the weights of ranks part",
        )
        for file, node, text in unaveraged
        if plan.is_managed
    ]  # fmt: skip
    refusals += [
        Refusal(
            Code.PLAIN_ENGINE, site.file, site.target,
            "the module of the optimizer has no name where the optimizer is bound, and its buffers are those of rank 0",
            "give the model a name there: make both in the same function, or return it beside the optimizer",
        )
        for site in plan.facts.all_sites
        if not site.modules and broadcasts_buffers(site, plan.facts)
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
    return replace(
        plan, no_syncs=no_syncs, sync_switches=sync_switches, joins=joins, notes=[*plan.notes, *notes]
    ).refuse(refusals)  # fmt: skip


def _switch(node: cst.Attribute, file: SourceFile) -> cst.Assign | None:
    """Return the assignment that sets an attribute alone."""
    target = file.parent(node)
    line = file.parent(target) if isinstance(target, cst.AssignTarget) else None
    return line if isinstance(line, cst.Assign) and len(line.targets) == 1 else None


def _is_option(node: cst.Attribute, file: SourceFile) -> bool:
    """Return whether an attribute is tested, as an option of the command line: ``args.no_sync``."""
    around = file.parent(node)
    is_tested = isinstance(around, (cst.If, cst.IfExp, cst.While)) and around.test is node
    return is_tested or isinstance(around, (cst.UnaryOperation, cst.BooleanOperation, cst.Comparison))


def broadcasts_buffers(site: Site, facts: LoopFacts) -> bool:
    """Return whether DistributedDataParallel gave all ranks the buffers of rank 0."""
    for file, call in facts.flow.nodes(cst.Call):
        if not facts.flow.is_call_of(call, file, DISTRIBUTED) or not facts.flow.values(call, file) & site.of:
            continue
        kept = argument(call, None, "broadcast_buffers")
        if kept is None or dotted(kept.value) != "False":
            return True
    return False


_OF_RANKS = frozenset({"get_rank", "get_world_size"})


def review_unwrapped(plan: ProgramPlan) -> ProgramPlan:
    """Report modules that a training loop calls, and of which DistributedDataParallel averaged no gradients.

    Refuse those whose class asks for its rank: their weights are the rank's share of a larger module's.
    """
    facts = plan.facts
    wrapped = wrapped_modules(facts)
    trained = frozenset(value for site in facts.sites for value in of_kind(site.of, Kind.MODULE))
    found: dict[Value, tuple[SourceFile, cst.Call]] = {}
    for file, function in facts.functions if wrapped else ():
        for call in file.nodes(cst.Call, below=function if function is not None else file.module):
            values = of_kind(facts.flow.values(call.func, file), Kind.MODULE)
            if file.function(call) is function and values and values <= trained - wrapped:
                for value in facts.flow.in_order(values):
                    found.setdefault(value, (file, call))
    shares = [place for value, place in found.items() if _asks_for_rank(value, facts.flow)]
    refusals = [
        Refusal(
            Code.PLAIN_DISTRIBUTED, file, call,
            "the class of this module asks for its rank, and DistributedDataParallel does not wrap it: each rank may "
            "have other weights, which an engine would make equal",
            "give each rank the whole module, as with one rank",
        )
        for file, call in shares
    ]  # fmt: skip
    notes = [
        Note(
            Code.PLAIN_DISTRIBUTED, file, call,
            "DistributedDataParallel does not have this module, and left each rank its own weights and gradients: "
            "the engine gives all ranks rank 0's weights, and averages",
            "wrap it in DistributedDataParallel, too, and both train the same",
        )
        for file, call in found.values()
    ]  # fmt: skip
    return replace(plan, notes=[*plan.notes, *notes]).refuse(refusals)


def wrapped_modules(facts: LoopFacts) -> Values:
    """Return the trained modules that are given to DistributedDataParallel."""
    trained = frozenset(value for site in facts.sites for value in site.of)
    return trained & frozenset(
        value
        for file, call in facts.flow.nodes(cst.Call)
        if facts.flow.is_call_of(call, file, DISTRIBUTED)
        for value in facts.flow.values(call, file)
    )


def _asks_for_rank(module: Value, flow: Flow) -> bool:
    """Return whether the class of a module asks for the number of its rank, or of all."""
    known = flow.node_of(module.of) if module.of else None
    return known is not None and any(
        last_name(call.func) in _OF_RANKS for call in known[0].nodes(cst.Call, below=known[1])
    )
