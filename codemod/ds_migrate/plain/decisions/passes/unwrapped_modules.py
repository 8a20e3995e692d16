"""Modules that a program trains beside DistributedDataParallel, each rank by itself."""

from __future__ import annotations

from dataclasses import replace

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.torch_names import DISTRIBUTED
from ds_migrate.plain.dataflow.values import Kind, Value, Values, of_kind
from ds_migrate.plain.decisions.plan import Note, ProgramPlan
from ds_migrate.plain.recognition.facts import LoopFacts, Refusal
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import last_name
from ds_migrate.syntax.source import SourceFile

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
