"""Losses that are not means over samples: their mean over the shares of ranks is not the loss of all samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.decisions.plan import Note
from ds_migrate.plain.ranks.data.losses.batch_totals import EXTREMES, MEANS, OF_EACH, SPREADS, BatchTotals
from ds_migrate.plain.ranks.data.losses.loss_parts import LossPart
from ds_migrate.plain.ranks.data.losses.selected_counts import counts_selected
from ds_migrate.plain.ranks.data.losses.selected_samples import is_selected
from ds_migrate.plain.ranks.data.losses.torch_losses import (
    divides_by_targets,
    library_losses,
    loss_makers,
    reduction_of,
)
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import called_name, operands, walk
from ds_migrate.syntax.source import SourceFile

_DEPTH = 4  # of names that are made of others
_OPERATORS: dict[str, type[cst.BaseBinaryOp]] = {
    "div": cst.Divide, "true_divide": cst.Divide, "sub": cst.Subtract, "mul": cst.Multiply, "pow": cst.Power,
}  # fmt: skip
_SETS: dict[type[cst.BaseAugOp], type[cst.BaseBinaryOp]] = {
    cst.DivideAssign: cst.Divide, cst.SubtractAssign: cst.Subtract, cst.MultiplyAssign: cst.Multiply,
    cst.PowerAssign: cst.Power,
}  # fmt: skip
# Losses of libraries that are quotients of sums over a batch.
_QUOTIENTS = frozenset(
    f"segmentation_models_pytorch.losses.{name}" for name in ("DiceLoss", "JaccardLoss", "TverskyLoss", "MCCLoss")
)
_ADVICE = (
    "leave it, as DistributedDataParallel trains so, too, or make it of sums over ranks, as "
    "torch.distributed.nn.functional.all_reduce() gives them"
)


def batch_statistics(parts: Iterable[LossPart], totals: BatchTotals) -> Iterator[Note]:
    """Yield a note for each function where a loss is made of what a whole batch gives, otherwise than as its mean."""
    seen = set[int]()
    for file, node, is_in_model in parts:
        function = file.function(node) or file.module
        if id(function) in seen:
            continue
        if _counts_targets(node, file, totals):
            message = (
                "this loss divides by the weights or targets that count in a batch: shares of ranks have other ones, "
                "so that the mean over ranks is not that of all"
            )
        elif _is_of_all(node, file, totals, is_in_model):
            message = (
                "this is made of a whole batch, and is no mean over its samples: "
                "what ranks find for their shares is, on average, another loss"
            )
        else:
            continue
        seen.add(id(function))
        yield Note(Code.PLAIN_SAMPLER, file, node, message, _ADVICE)


def _counts_targets(node: cst.CSTNode, file: SourceFile, totals: BatchTotals) -> bool:
    """Return whether a loss of torch is a mean over weights, or over the targets that count."""
    makers = list(loss_makers(node, file, totals.flow)) if isinstance(node, cst.Call) else []
    if not makers or not isinstance(node, cst.Call):
        return False
    is_of_mask = any(is_selected(arg.value, file, totals) for arg in node.args)
    return any(
        divides_by_targets(maker, totals.flow) or (is_of_mask and reduction_of(maker) == "mean") for maker in makers
    )


def _is_of_all(node: cst.CSTNode, file: SourceFile, totals: BatchTotals, is_in_model: bool) -> bool:
    if isinstance(node, cst.BinaryOperation):
        return _combines(type(node.operator), node.left, node.right, file, totals, is_in_model)
    if isinstance(node, cst.AugAssign):
        operator = _SETS.get(type(node.operator))
        return operator is not None and _combines(operator, node.target, node.value, file, totals, is_in_model)
    if not isinstance(node, cst.Call):
        return False
    if totals.differs(node, file) and not _QUOTIENTS.isdisjoint(library_losses(node, file, totals.flow)):
        return True
    name = called_name(node)
    given = [part for part in operands(node) if totals.differs(part, file)]
    operator = _OPERATORS.get(name.rstrip("_"))
    if operator is not None and len(given) == 2:
        return _combines(operator, given[0], given[1], file, totals, is_in_model)
    if name in EXTREMES and not is_in_model:
        return totals.reduces(node, file) and _is_of_outputs(node, file, totals) and _is_term(node, file)
    if name in SPREADS:
        return (not is_in_model or name in ("std", "var")) and totals.reduces(node, file)
    if is_in_model:
        return False
    if name in MEANS:
        operand = totals.operand(node, file)
        leaves_out = name == "nanmean" or (operand is not None and is_selected(operand, file, totals))
        return leaves_out and totals.reduces(node, file)
    return name.rstrip("_") in OF_EACH and any(totals.is_total(part, file) for part in given)


def _is_term(node: cst.Call, file: SourceFile) -> bool:
    """Return whether the largest or smallest number is a loss, or a term of one: not detached, and not compared."""
    outer = file.parent(node)
    while isinstance(outer, (cst.BinaryOperation, cst.UnaryOperation, cst.IfExp)):
        outer = file.parent(outer)
    return isinstance(outer, (cst.Assign, cst.AugAssign, cst.AnnAssign, cst.Return, cst.Attribute, cst.Arg)) and not (
        isinstance(outer, cst.Attribute) and outer.attr.value != "backward"
    )


def _is_of_outputs(node: cst.CSTNode, file: SourceFile, totals: BatchTotals, depth: int = _DEPTH) -> bool:
    """Return whether an expression is made of what a model or a loss gives, and not of the data alone."""
    for part in walk(node):
        if isinstance(part, cst.Call) and (
            of_kind(totals.flow.values(part.func, file), Kind.MODULE) or any(loss_makers(part, file, totals.flow))
        ):
            return True
        if depth and isinstance(part, cst.Name):
            values = totals.flow.scopes(file).assigned(part)
            if any(_is_of_outputs(value, file, totals, depth - 1) for value in values if value is not part):
                return True
    return False


def _combines(
    operator: type[cst.BaseBinaryOp],
    left: cst.BaseExpression,
    right: cst.BaseExpression,
    file: SourceFile,
    totals: BatchTotals,
    is_in_model: bool,
) -> bool:
    """Return whether an operation is not linear in a number that a whole batch gives."""
    if operator is cst.Subtract:
        return _is_centered(left, right, file, totals)
    if is_in_model:
        return False
    if operator is cst.Power:
        return totals.is_total(left, file)
    if operator is cst.Divide:
        return totals.is_total(right, file) or (totals.differs(left, file) and counts_selected(right, file, totals))
    return operator is cst.Multiply and totals.is_total(left, file) and totals.is_total(right, file)


def _is_centered(left: cst.BaseExpression, right: cst.BaseExpression, file: SourceFile, totals: BatchTotals) -> bool:
    """Return whether samples lose the mean of their batch: ``x - x.mean(0)``."""
    if totals.is_total(left, file) or not totals.is_total(right, file):
        return False
    names = [{node.value for node in walk(side) if isinstance(node, cst.Name)} for side in (left, right)]
    called = {called_name(node) for node in walk(right) if isinstance(node, cst.Call)}
    return bool(names[0] & names[1] - {"self", "torch", "F"} - called)
