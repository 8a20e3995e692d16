"""Numbers that a program carries from batch to batch into its losses, as weights that follow the losses before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from ds_migrate.plain.dataflow.by_rank.rank_values import RankValues
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.registered_buffers import registered_buffers
from ds_migrate.plain.dataflow.scopes import is_label, names_in
from ds_migrate.plain.decisions.plan import Note, ProgramPlan
from ds_migrate.plain.ranks.data.losses.batch_totals import BatchTotals
from ds_migrate.plain.ranks.data.losses.loss_parts import LossPart
from ds_migrate.plain.recognition.batches.loaders import loaders_of
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import dotted, targets, walk, without_index
from ds_migrate.syntax.source import SourceFile

_LOOPS = (cst.For, cst.While)
_DEPTH = 3  # of names between a value and the one before
_Line = cst.Assign | cst.AugAssign


def carried_numbers(
    plan: ProgramPlan, parts: Iterable[LossPart], totals: BatchTotals, values: RankValues
) -> Iterator[Note]:
    """Yield a note for each name whose value differs by rank, is of a batch before, and is a factor of a loss."""
    seen = set[tuple[int, str]]()
    training = {id(backward.file.function(backward.node)) for backward in plan.fed}
    for file, node, is_in_model in parts:
        name = dotted(node) if isinstance(node, (cst.Name, cst.Attribute)) else None
        scope = file.class_around(node) if name is not None and "." in name else file.function(node)
        if name is None or is_in_model or (id(scope), name) in seen or not _is_operand(node, file):
            continue
        seen.add((id(scope), name))
        if not values.differs(node, file) or (id(scope) not in training and _begins_with_call(name, scope, file, plan)):
            continue
        line = _carrying(node, name, scope or file.module, file, values, totals)
        if line is not None:
            how = (
                "batches of its share, one after the other," if _is_in_loop(line, file) else "first batch of its share"
            )
            message = f"each rank makes its own {name} of the {how} for the loss"
            advice = "make it of mean_over_ranks() of what a batch gives, and all ranks have the same"
            yield Note(Code.PLAIN_AGREEMENT, file, line, message, advice)


def _is_in_loop(line: cst.CSTNode, file: SourceFile) -> bool:
    return any(isinstance(outer, _LOOPS) for outer in file.ancestors(line)) or file.class_around(line) is not None


def _is_operand(node: cst.CSTNode, file: SourceFile) -> bool:
    """Return whether a loss is computed with a name, or with an item of it."""
    outer = file.parent(node)
    while isinstance(outer, (cst.Subscript, cst.UnaryOperation)):
        outer = file.parent(outer)
    return isinstance(outer, cst.BinaryOperation)


def _begins_with_call(name: str, scope: cst.CSTNode | None, file: SourceFile, plan: ProgramPlan) -> bool:
    """Return whether each call of a function begins with another value of a name, and gets no further batch."""
    if not isinstance(scope, cst.FunctionDef):
        return False
    lines = file.nodes(cst.Assign, below=scope.body)
    is_begun = any(dotted(target) == name for line in lines for target in targets(line))
    read = (part for part in walk(scope) if isinstance(part, (cst.Name, cst.Attribute)))
    return is_begun and not any(loaders_of(part, file, plan.facts.flow) for part in read)


def _carrying(
    node: cst.CSTNode, name: str, scope: cst.CSTNode, file: SourceFile, values: RankValues, totals: BatchTotals
) -> _Line | None:
    """Return the line that makes a value of the one before, or of a batch for the next one.

    None where each batch begins with another one.
    """
    lines = [line for line in file.nodes(cst.Assign, cst.AugAssign, below=scope) if _sets(line, name)]
    carrying = [
        line for line in lines
        if (_carries(line, name, file, totals.flow) or _is_for_next(line, node, file, totals))
        and not _is_of_samples(line, file, values)
    ]  # fmt: skip
    items = [line for line in lines if any(isinstance(target, cst.Subscript) for target in targets(line))]
    begun = [line for line in lines if line not in carrying and line not in items]
    if "." in name:
        is_begun_again = any(not _is_init(line, file) for line in begun)
        buffers = {buffer for _, buffer in registered_buffers(file)}  # these are asked for by themselves
        return next(iter(carrying), None) if not (is_begun_again or name.rpartition(".")[2] in buffers) else None
    loop = _loop_over_batches(node, file, values)
    binding = [*begun, *(other.target for other in file.nodes(cst.For, below=scope) if name in names_in(other.target))]
    if loop is None or any(outer is loop for line in binding for outer in file.ancestors(line)):
        return None
    made_before = [line for line in begun if totals.is_total(line.value, file)]
    inside = [line for line in carrying if any(outer is loop for outer in file.ancestors(line))]
    return next(iter([*inside, *made_before]), None)


def _loop_over_batches(node: cst.CSTNode, file: SourceFile, values: RankValues) -> cst.CSTNode | None:
    """Return the outermost loop around a node over what differs by rank, and not over loaders; else the outermost."""
    loops = [outer for outer in file.ancestors(node) if isinstance(outer, _LOOPS)]
    over = [loop for loop in loops if isinstance(loop, cst.For) and values.differs(loop.target, file)]
    over = [loop for loop in over if not values.is_share(loop.target, file)]
    return next(iter([*reversed(over), *reversed(loops)]), None)


def _sets(line: _Line, name: str) -> bool:
    names = {name, f"{name}.data"}
    return any(dotted(without_index(t)) in names or name in names_in(t) for t in targets(line))


def _carries(line: _Line, name: str, file: SourceFile, flow: Flow) -> bool:
    """Return whether a line makes a value of the one before, through other names too."""
    return isinstance(line, cst.AugAssign) or _reads(line.value, name, file, flow, _DEPTH)


def _is_for_next(line: _Line, use: cst.CSTNode, file: SourceFile, totals: BatchTotals) -> bool:
    """Return whether a line sets what a batch gives behind the loss of that batch, in a loop around both."""
    if file.position(line) < file.position(use) or not totals.is_total(line.value, file):
        return False
    loops = {id(outer) for outer in file.ancestors(use) if isinstance(outer, _LOOPS)}
    return any(id(outer) in loops for outer in file.ancestors(line)) and file.function(line) is file.function(use)


def _reads(node: cst.CSTNode, name: str, file: SourceFile, flow: Flow, depth: int) -> bool:
    parts = [p for p in walk(node) if isinstance(p, (cst.Name, cst.Attribute)) and not is_label(p, file)]
    if any(dotted(part) == name for part in parts):
        return True
    made = (value for part in parts if isinstance(part, cst.Name) for value in flow.scopes(file).assigned(part))
    return depth > 0 and "." in name and any(_reads(value, name, file, flow, depth - 1) for value in made)


def _is_of_samples(line: _Line, file: SourceFile, values: RankValues) -> bool:
    """Return whether a line sets items that a batch names: those of the samples that it has."""
    return any(isinstance(target, cst.Subscript) and values.differs(target.slice[0], file) for target in targets(line))


def _is_init(line: cst.CSTNode, file: SourceFile) -> bool:
    function = file.function(line)
    return function is not None and function.name.value == "__init__"
