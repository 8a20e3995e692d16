"""Batches that ``next()`` draws: those that training is made of, and those that are only shown."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.dataflow.scopes import names_in
from ds_migrate.plain.dataflow.values import NOTHING, Kind, of_kind
from ds_migrate.plain.recognition.facts import LoopFacts
from ds_migrate.syntax.nodes import dotted, targets, walk
from ds_migrate.syntax.source import SourceFile


def drawn_batches(file: SourceFile, node: cst.CSTNode, facts: LoopFacts) -> Iterator[cst.BaseExpression]:
    """Yield what ``next()`` draws from, in the function around a step, or a call that leads to it, to train on it."""
    function = file.function(node)
    below = function or file.module
    draws = [
        call for call in file.nodes(cst.Call, below=below)
        if dotted(call.func) == "next" and call.args and (function is not None or file.function(call) is None)
    ]  # fmt: skip
    if not draws:
        return
    used = _names_behind(node, file, facts)
    looped = {name for loop in file.nodes(cst.For, below=below) for name in names_in(loop.target)}
    for call in draws:
        names = _names_of(call, file)
        is_given = any(part is call for part in walk(node))  # to the function that trains
        is_anew = isinstance(call.args[0].value, cst.Call)  # next(iter(loader)) beside a loop over another one
        if is_given or not used or not names or (names & used and not (is_anew and names & looped)):
            yield call.args[0].value


def _names_of(call: cst.Call, file: SourceFile) -> set[str]:
    """Return the names that are given a batch; none where it is given to something else."""
    statements = (cst.BaseSmallStatement, cst.BaseCompoundStatement)
    line = next((outer for outer in file.ancestors(call) if isinstance(outer, statements)), None)
    if not isinstance(line, cst.Assign):
        return set()
    bound = [names_in(target) for target in targets(line)]
    return {name for names in bound for name in names} if all(bound) else set()


def _names_behind(node: cst.CSTNode, file: SourceFile, facts: LoopFacts) -> set[str]:
    """Return the names that the losses of a step are made of, in its function, or the arguments of a call to it."""
    function = file.function(node)
    losses = [b.loss for b in facts.operations.backwards if b.file is file and b.function is function]
    given = [arg.value for arg in node.args] if isinstance(node, cst.Call) else []
    used = {name for part in (*losses, *given) for name in _read(part)}
    links = list(_links(file, function or file.module, facts)) if used else []
    while True:
        more = {name for bound, read in links if bound & used for name in read} - used
        if not more:
            return used
        used |= more


def _links(file: SourceFile, below: cst.CSTNode, facts: LoopFacts) -> Iterator[tuple[set[str], set[str]]]:
    """Yield names, and those that they are made of."""
    for node in file.nodes(cst.Assign, cst.AnnAssign, cst.AugAssign, cst.NamedExpr, below=below):
        bound = targets(node) if not isinstance(node, cst.NamedExpr) else [node.target]
        if node.value is not None:
            yield {name for target in bound for name in _read(target)}, _read(node.value)
    for node in file.nodes(cst.For, cst.CompFor, below=below):
        yield _read(node.target), _read(node.iter)
    for node in file.nodes(cst.WithItem, below=below):
        if node.asname is not None:
            yield _read(node.asname.name), _read(node.item)
    for call in file.nodes(cst.Call, below=below):  # outputs.append(model(x))
        owners = facts.flow.values(call.func.value, file) if isinstance(call.func, cst.Attribute) else NOTHING
        if isinstance(call.func, cst.Attribute) and not of_kind(owners, Kind.MODULE, Kind.EXTERNAL):
            yield _read(call.func.value), {name for arg in call.args for name in _read(arg.value)}


def _read(node: cst.CSTNode) -> set[str]:
    return {n.value for n in walk(node) if isinstance(n, cst.Name)}
