"""Averages over the samples of an epoch: each rank has as many as its share of the data."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import libcst as cst

from ds_migrate.plain.dataflow.branches.blocks import always_runs_before
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.edits.runtime_names import Converted, RuntimeNames
from ds_migrate.plain.recognition.batches.loaders import loaders_of
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import called_name, code, dotted, walk
from ds_migrate.syntax.source import SourceFile

_OUTPUT = frozenset({"print", "format", "write", "debug", "info", "warning", "set_description", "set_postfix"})
Makers = Iterable[tuple[SourceFile, cst.Call]]


def count_own_samples(
    makers: Makers,
    of_ranks: Collection[int],
    files: list[SourceFile],
    flow: Flow,
    runtime: RuntimeNames,
    converted: Converted,
) -> set[int]:
    """Count a rank's own samples where sums over them are divided, or progress is reported; return where, by identity.

    The length of a data set that scales what trains (the weight of a prior in the loss) stays that of all data.

    Args:
        makers: the calls that make the loaders of which each rank has a share.
        of_ranks: those that make loaders where the program starts ranks itself, by identity.
    """
    known, counted = list(makers), set[int]()
    for file in files:
        for call in file.nodes(cst.Call):
            if dotted(call.func) != "len" or len(call.args) != 1 or not _is_of_an_epoch(call, file, flow):
                continue
            loader = loader_of(call.args[0].value, file, known, flow, of_ranks)
            if loader is not None:
                file.replace(call, f"{runtime.name(file, 'count_samples')}({loader})")
                counted.add(id(call))
                converted(Code.PLAIN_SAMPLER, file, call, "each rank counts the samples of its share")
    return counted


def loader_of(
    data: cst.BaseExpression, file: SourceFile, makers: Makers, flow: Flow, of_ranks: Collection[int]
) -> str | None:
    """Return the expression of the loader whose data set an expression is: ``loader.dataset``, or a name beside it.

    None where it may be a loader of a program that starts ranks itself.
    """
    nodes = {id(maker) for _, maker in makers}
    if isinstance(data, cst.Attribute) and data.attr.value == "dataset":
        held = of_kind(flow.values(data.value, file), Kind.LOADER)
        made = {id(flow.node(value)) for value in held}
        return code(data.value) if made & nodes and made.isdisjoint(of_ranks) else None
    if not isinstance(data, cst.Name):
        return None
    variable = flow.variable(data, file)
    for other, maker in makers:
        assign = other.parent(maker)
        target = assign.targets[0].target if isinstance(assign, cst.Assign) and len(assign.targets) == 1 else None
        given = maker.args[0].value if maker.args else None
        is_made = other is file and always_runs_before(maker, data, file)
        if is_made and isinstance(target, cst.Name) and isinstance(given, cst.Name):
            is_same = flow.variable(given, file) == variable
            if is_same and flow.scopes(file).variable(target.value, data) == flow.variable(target, file):
                return target.value
    return None


def _is_of_an_epoch(call: cst.Call, file: SourceFile, flow: Flow) -> bool:
    """Return whether a length is reported, or divides a sum over an epoch, but no loss that trains."""
    inner: cst.CSTNode = call
    for outer in file.ancestors(call):
        if isinstance(outer, cst.Call) and _is_total_of_bar(inner, outer):
            return True
        if isinstance(outer, cst.Call) and inner is not outer.func and called_name(outer) in _OUTPUT:
            return bool(_loops_before(call, file, flow))
        if isinstance(outer, cst.BinaryOperation) and isinstance(outer.operator, cst.Divide) and inner is outer.right:
            return _is_number(outer.left) or (_is_sum(outer.left, file) and _follows_epoch(call, file, flow))
        if isinstance(outer, cst.AugAssign):
            is_divided = isinstance(outer.operator, cst.DivideAssign) and inner is outer.value
            return is_divided and _is_sum(outer.target, file) and _follows_epoch(call, file, flow)
        if isinstance(outer, cst.BaseStatement):
            return False
        inner = outer
    return False


def _is_total_of_bar(arg: cst.CSTNode, call: cst.Call) -> bool:
    is_total = isinstance(arg, cst.Arg) and arg.keyword is not None and arg.keyword.value == "total"
    return is_total and (dotted(call.func) or "").rpartition(".")[2] == "tqdm"


def _is_number(node: cst.BaseExpression) -> bool:
    """Return whether an expression is made of numbers that left their tensors."""
    return any(isinstance(n, cst.Attribute) and n.attr.value in ("item", "tolist") for n in walk(node))


def _is_sum(node: cst.BaseExpression, file: SourceFile) -> bool:
    """Return whether an expression has a name to which something is added elsewhere, or sums up."""
    added = {
        dotted(line.target) for line in file.nodes(cst.AugAssign) if isinstance(line.operator, cst.AddAssign)
    }  # fmt: skip
    return any(dotted(n) in added or dotted(n) == "sum" for n in walk(node) if isinstance(n, (cst.Name, cst.Attribute)))


def _follows_epoch(call: cst.Call, file: SourceFile, flow: Flow) -> bool:
    """Return whether a call comes behind a loop over a loader, in its function, and is in none."""
    loops = _loops_before(call, file, flow)
    around = {id(outer) for outer in file.ancestors(call)}
    return bool(loops) and not any(id(loop) in around for loop in loops)


def _loops_before(call: cst.Call, file: SourceFile, flow: Flow) -> list[cst.For]:
    """Return the loops over loaders in a call's function that it is in, or comes behind."""
    scope = file.function(call)
    return [
        loop for loop in file.nodes(cst.For, below=scope or file.module)
        if file.function(loop) is scope and loaders_of(loop.iter, file, flow)
        and file.position(loop) < file.position(call)
    ]  # fmt: skip
