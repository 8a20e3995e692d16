"""Numbers that a loop makes of the data alone, as their mean or the weights of classes: each rank has its share's."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.dataflow.by_rank.rank_values import RankValues
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.scopes import names_in
from ds_migrate.plain.dataflow.values import Kind, Values, of_kind
from ds_migrate.plain.decisions.plan import Note, ProgramPlan
from ds_migrate.plain.ranks.agreement.common_operations import CommonOperations
from ds_migrate.plain.ranks.data.epochs.collected_items import collected_items
from ds_migrate.plain.recognition.batches.loaders import loaders_of
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import called_name, mentions, targets
from ds_migrate.syntax.source import SourceFile

_KEEPS = frozenset({"append", "extend", "update", "add"})
# Methods of modules that compute nothing of a batch.
_SETTINGS = frozenset({"to", "train", "eval", "apply", "load_state_dict", "requires_grad_"})


def share_statistics(
    plan: ProgramPlan, files: list[SourceFile], values: RankValues, common: CommonOperations
) -> Iterator[Note]:
    """Yield a note for each loop that sums up batches of a share beside training, without a model that is trained."""
    flow = plan.facts.flow
    modules = frozenset(value for site in plan.facts.sites for value in site.of)
    for file in files:
        for loop in file.nodes(cst.For):
            if common.holds(loop.body) or not values.are_shares(loaders_of(loop.iter, file, flow)):
                continue
            if uses(modules, loop.body, file, flow) or _steps(loop, file, flow):
                continue
            if sums_up(loop, file):
                yield _note(file, loop)
        for comp in comprehensions(file):
            if common.holds(comp) or not values.are_shares(loaders_of(comp.for_in.iter, file, flow)):
                continue
            is_lazy = isinstance(comp, cst.GeneratorExp) and not isinstance(file.parent(comp), cst.Arg)
            if not is_lazy and not uses(modules, comp, file, flow):
                yield _note(file, comp)


def _note(file: SourceFile, node: cst.CSTNode) -> Note:
    message = "this sums up a rank's share of the data, so that each rank may train by other numbers"
    advice = "loop over a loader of all data here, or give the numbers to mean_over_ranks()"
    return Note(Code.PLAIN_AGREEMENT, file, node, message, advice)


def comprehensions(file: SourceFile) -> Iterator[cst.BaseComp]:
    """Yield the comprehensions of a file that make something of each batch, or other item, which they run over."""
    for comp in file.nodes(cst.ListComp, cst.GeneratorExp, cst.SetComp, cst.DictComp):
        made = [comp.key, comp.value] if isinstance(comp, cst.DictComp) else [comp.elt]
        outer = file.parent(comp)
        call = file.parent(outer) if isinstance(outer, cst.Arg) else None
        is_of_first = isinstance(call, cst.Call) and called_name(call) == "next"
        if not is_of_first and any(mentions(part, set(names_in(comp.for_in.target))) for part in made):
            yield comp


def _steps(loop: cst.For, file: SourceFile, flow: Flow) -> bool:
    """Return whether a loop steps an optimizer, as that of another program that shares the file: it trains itself."""
    return any(
        isinstance(call.func, cst.Attribute)
        and call.func.attr.value == "step"
        and of_kind(flow.values(call.func.value, file), Kind.OPTIMIZER)
        for call in file.nodes(cst.Call, below=loop.body)
    )


def uses(modules: Values, body: cst.CSTNode, file: SourceFile, flow: Flow, depth: int = 3) -> bool:
    """Return whether a call in some code, or in what it calls, is of one of these modules, or has one as argument.

    So does a method that is given something: ``model.predict(x)``.
    """
    calls: list[cst.Call] = file.nodes(cst.Call, below=body)
    used = [part for call in calls for part in (call.func, *_owner(call), *(arg.value for arg in call.args))]
    if any(flow.values(part, file) & modules for part in used):
        return True
    return depth > 0 and any(
        uses(modules, flow.node(function), flow.file(function), flow, depth - 1)
        for call in calls
        for function in of_kind(flow.values(call.func, file), Kind.FUNCTION, Kind.METHOD)
    )


def _owner(call: cst.Call) -> list[cst.BaseExpression]:
    """Return the object whose method is given something to compute with."""
    is_given = isinstance(call.func, cst.Attribute) and bool(call.args) and call.func.attr.value not in _SETTINGS
    return [call.func.value] if is_given and isinstance(call.func, cst.Attribute) else []


def sums_up(loop: cst.For, file: SourceFile) -> bool:
    """Return whether a loop adds something that is made of its batches to what was before."""
    names = set(names_in(loop.target))
    for line in file.nodes(cst.Assign, below=loop.body):
        if mentions(line.value, names):
            names |= {name for target in targets(line) for name in names_in(target)}
    sums: list[cst.AugAssign] = file.nodes(cst.AugAssign, below=loop.body)
    calls: list[cst.Call] = file.nodes(cst.Call, below=loop.body)
    kept = (arg.value for call in calls if _keeps(call) for arg in call.args)
    items = (item.value for item in collected_items(loop, file))
    return any(mentions(value, names) for value in (*(line.value for line in sums), *kept, *items))


def _keeps(call: cst.Call) -> bool:
    return isinstance(call.func, cst.Attribute) and call.func.attr.value in _KEEPS
