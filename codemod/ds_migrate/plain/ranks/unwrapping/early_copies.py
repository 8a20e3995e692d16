"""Copies of a model between its engine and DistributedDataParallel, which began with each rank's own weights.

The engine gives all ranks rank 0's weights, and is made where the optimizer is. Where ranks make models by other seeds,
a copy before the wrapper kept these apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.torch_names import DISTRIBUTED
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.decisions.plan import Note
from ds_migrate.plain.ranks.unwrapping.weight_copies import weight_copies
from ds_migrate.plain.ranks.unwrapping.wrapped_values import WrapperCall
from ds_migrate.plain.recognition.facts import LoopFacts, Site
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import last_name, walk
from ds_migrate.syntax.source import SourceFile

_RANK = re.compile("rank|gpu|process_index", re.IGNORECASE)
_OTHER_GENERATORS = frozenset({"numpy", "random"})
_DEPTH = 4
_Call = tuple[SourceFile, cst.Call]


def early_copies(facts: LoopFacts, wrappers: Sequence[WrapperCall]) -> Iterator[Note]:
    """Yield a note for each copy behind an engine and before its wrapper, where each rank makes another model."""
    flow = facts.flow
    seedings = [(file, call) for file, call in flow.nodes(cst.Call) if wrappers and _seeds_by_rank(call, file, flow)]
    for site in facts.sites if seedings else ():
        begin = site.file.position(site.statement)
        wrapped = [
            (file, call) for file, call, module in wrappers
            if flow.values(module.value, file) & site.of and flow.is_call_of(call, file, DISTRIBUTED)
        ]  # fmt: skip
        makers = [(flow.file(value), node) for value in site.of if isinstance(node := flow.node(value), cst.Call)]
        ends, made, seeded = (
            [site.file.position(place) for place in _places(of, site, flow)] for of in (wrapped, makers, seedings)
        )
        if seeded and min(seeded) > max(made, default=begin):
            continue
        for place in _places(weight_copies(site.of, flow), site, flow):
            if begin < site.file.position(place) < max(ends, default=begin):
                message = (
                    "this copy begins with rank 0's weights on all ranks, and began with each rank's own: "
                    "the engine gives all ranks rank 0's before it, DistributedDataParallel behind it"
                )
                advice = "make it before the optimizer for each rank's own weights"
                yield Note(Code.PLAIN_DISTRIBUTED, site.file, place, message, advice)


def _places(calls: Iterator[_Call] | list[_Call], site: Site, flow: Flow) -> list[cst.Call]:
    """Return these calls in the function that makes the optimizer, and its calls of functions in which others are."""
    ids, functions = set[int](), set[int]()
    for file, call in calls:
        ids.add(id(call))
        around = [outer for outer in file.ancestors(call) if isinstance(outer, (cst.FunctionDef, cst.ClassDef))]
        functions |= {id(outer) for outer in around if outer is not site.function}
    return [
        call for call in site.file.nodes(cst.Call, below=site.function or site.file.module)
        if site.file.function(call) is site.function
        and (id(call) in ids or functions & {value.key for value in flow.values(call.func, site.file)})
    ]  # fmt: skip


def _seeds_by_rank(call: cst.Call, file: SourceFile, flow: Flow) -> bool:
    """Return whether a call gives the generator that weights are drawn from another seed on each rank."""
    if "seed" not in last_name(call.func).lower():
        return False
    libraries = {value.name.split(".")[0] for value in of_kind(flow.values(call.func, file), Kind.EXTERNAL)}
    return bool(libraries - _OTHER_GENERATORS) and any(_is_of_rank(arg.value, file, flow, _DEPTH) for arg in call.args)


def _is_of_rank(node: cst.BaseExpression, file: SourceFile, flow: Flow, depth: int) -> bool:
    """Return whether a number is made of the rank."""
    names = [part for part in walk(node) if isinstance(part, (cst.Name, cst.Attribute))]
    if any(_RANK.search(last_name(name)) is not None for name in names):
        return True
    sources = flow.callers.sources
    return depth > 0 and any(
        _is_of_rank(value, home, flow, depth - 1) for name in names for value, home in sources(name, file)
    )
