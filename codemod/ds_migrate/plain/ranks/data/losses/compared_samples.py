"""Losses that compare the samples of a batch with each other, as contrastive ones: each rank has those of its share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from ds_migrate.plain.dataflow.by_rank.rank_values import RankValues
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.decisions.plan import Note
from ds_migrate.plain.ranks.data.losses.batch_totals import transposed
from ds_migrate.plain.ranks.data.losses.loss_parts import LossPart
from ds_migrate.plain.ranks.data.losses.torch_losses import library_losses
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import called_name, dotted, number, walk
from ds_migrate.syntax.source import SourceFile

_PRODUCTS = frozenset({"mm", "matmul", "addmm", "addmm_"})
_DISTANCES = frozenset({"cdist", "cosine_similarity", "pairwise_distance"})
_MEASURES = ("torch.nn.CosineSimilarity", "torch.nn.PairwiseDistance")
# How the names of losses begin, in libraries of those that compare samples.
_LOSSES = ("pytorch_metric_learning.losses.", "pytorch_metric_learning.miners.", "lightly.loss.", "info_nce.")
_RUNNING = frozenset({"cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"})
_ORDERS = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "sub"})
# Methods that repeat a tensor, or keep its numbers.
_REPEATS = frozenset({"expand", "expand_as", "repeat", "contiguous", "clone", "detach", "float"})
_NUMBERED = frozenset({"arange", "range", "linspace"})
_FOLLOWED = 6


def compared_samples(parts: Iterable[LossPart], flow: Flow, values: RankValues) -> Iterator[Note]:
    """Yield a note for each function where what a loss is made of compares all samples of a batch with all others."""
    pairs = _Pairs(flow, values)
    seen = set[int]()
    for file, part, is_in_model in parts:
        function = id(file.function(part) or file.module)
        is_found = pairs.are_compared(part, file) or (not is_in_model and pairs.are_compared_by_step(part, file))
        if function not in seen and is_found:
            seen.add(function)
            message = "the loss compares the samples of a batch with each other: each rank has those of its share alone"
            advice = "gather those of all ranks for it, as torch.distributed.nn.functional.all_gather() does"
            yield Note(Code.PLAIN_SAMPLER, file, part, message, advice)


class _Pairs:
    def __init__(self, flow: Flow, values: RankValues) -> None:
        self._flow = flow
        self._values = values

    def are_compared(self, node: cst.CSTNode, file: SourceFile) -> bool:
        """Return whether a node is a product of a matrix of samples with a transposed one, or their distances.

        So is what combines a column with a row: the difference of the same samples, by which a loss over risk sets
        orders them, or of all pairs (``x[:, None] - y[None]``); and what adds up one sample behind the other.
        """
        is_of_batch = isinstance(node, cst.Call) and self._values.differs(node, file)
        if is_of_batch and isinstance(node, cst.Call) and called_name(node) in _RUNNING and _is_along_samples(node):
            return True
        names = library_losses(node, file, self._flow) if is_of_batch and isinstance(node, cst.Call) else ()
        if any(name.startswith(_LOSSES) for name in names):
            return True
        sides = self._operands(node, file)
        if isinstance(node, cst.Call) and _is_product_of_pairs(node):
            sides, is_of_pairs = [arg.value for arg in node.args[1:]], True
        elif isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.MatrixMultiply):
            is_of_pairs = any(map(_is_transposed, sides))
        elif isinstance(node, cst.Call) and called_name(node) in _PRODUCTS:
            is_of_pairs = any(map(_is_transposed, sides))
            sides = sides[-2:]
        elif isinstance(node, cst.Call) and called_name(node) not in _ORDERS:
            is_of_pairs = called_name(node) == "cdist" or (bool(sides) and all(map(_is_spread, sides)))
        else:
            owners = [transposed(side) for side in sides]
            is_of_pairs = {self._spread(side, file) for side in sides} == {0, 1} or any(
                owner is not None and owner.deep_equals(other)
                for owner, other in zip(owners, reversed(sides), strict=True)
            )
        return is_of_pairs and len(sides) == 2 and all(self._is_of_samples(side, file) for side in sides)

    def are_compared_by_step(self, node: cst.CSTNode, file: SourceFile) -> bool:
        """Return whether a node multiplies, at each time step, a matrix of samples with a transposed one.

        The samples are the second dimension: ``z = z.transpose(0, 1)`` and ``torch.matmul(z, z.transpose(1, 2))``.
        """
        if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.MatrixMultiply):
            right = node.right
        elif isinstance(node, cst.Call) and node.args and called_name(node).rpartition(".")[2] in _PRODUCTS | {"bmm"}:
            right = node.args[-1].value
        else:
            return False
        turned = transposed(right, is_of_each=True)
        if not isinstance(turned, cst.Name) or not self._is_of_samples(turned, file):
            return False
        return any(map(_is_transposed, self._flow.scopes(file).assigned(turned)))

    def _is_of_samples(self, node: cst.BaseExpression, file: SourceFile) -> bool:
        """Return whether an expression differs by rank, and has no numbers in order, as a mask for padding has."""
        below = [part for part in walk(node) if isinstance(part, cst.Call)]
        return self._values.differs(node, file) and not any(called_name(call) in _NUMBERED for call in below)

    def _operands(self, node: cst.CSTNode, file: SourceFile) -> list[cst.BaseExpression]:
        """Return what a node may compare with each other."""
        if isinstance(node, cst.Comparison):
            return [node.left, node.comparisons[0].comparator] if len(node.comparisons) == 1 else []
        if isinstance(node, cst.BinaryOperation):
            return [node.left, node.right]
        if not isinstance(node, cst.Call):
            return []
        given = [arg.value for arg in node.args if arg.keyword is None and number(arg.value) is None]
        is_measure = called_name(node) in _DISTANCES or self._is_made_measure(node, file)
        if (
            not is_measure and called_name(node) not in _PRODUCTS | _ORDERS
        ):  # similarity(x.unsqueeze(1), y.unsqueeze(0))
            return given if len(given) == 2 and {self._spread(side, file) for side in given} == {0, 1} else []
        owner = [node.func.value] if isinstance(node.func, cst.Attribute) and len(given) == 1 else []
        return [*owner, *given] if called_name(node) in _PRODUCTS else [*owner, *given][:2]

    def _is_made_measure(self, call: cst.Call, file: SourceFile) -> bool:
        """Return whether a call is of an object of torch that measures distances."""
        return any(name in _MEASURES for name in library_losses(call, file, self._flow))

    def _spread(self, node: cst.BaseExpression, file: SourceFile, depth: int = _FOLLOWED) -> int | None:
        """Return before which of its first two dimensions a tensor of samples gets another one; None for neither."""
        if depth == 0:
            return None
        if isinstance(node, cst.Name):
            assigned = self._flow.scopes(file).assigned(node)
            return self._spread(assigned[0], file, depth - 1) if len(assigned) == 1 else None
        if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
            dims = [number(arg.value) for arg in node.args]
            if node.func.attr.value == "unsqueeze" and dims in ([0], [1]):
                return 0 if dims == [0] else 1
            if node.func.attr.value in _REPEATS:
                return self._spread(node.func.value, file, depth - 1)
            is_turned = node.func.attr.value in ("permute", "transpose") and set(dims[:2]) == {0, 1}
            before = self._spread(node.func.value, file, depth - 1) if is_turned else None
            return 1 - before if before is not None else None
        if isinstance(node, cst.Subscript) and _is_none(node.slice[0]):
            return 0
        is_second = isinstance(node, cst.Subscript) and len(node.slice) > 1 and _is_none(node.slice[1])
        return 1 if is_second else None


def _is_along_samples(call: cst.Call) -> bool:
    """Return whether a call works along the first dimension: ``x.cumsum(0)`` or ``torch.cumsum(x, dim=0)``."""
    return any(
        number(arg.value) == 0 and (arg.keyword is None or arg.keyword.value in ("dim", "axis")) for arg in call.args
    )


def _is_product_of_pairs(call: cst.Call) -> bool:
    """Return whether ``einsum()`` multiplies each row of one matrix with each row of another: ``"ik,jk->ij"``."""
    pattern = call.args[0].value if called_name(call) == "einsum" and len(call.args) == 3 else None
    if not isinstance(pattern, cst.SimpleString):
        return False
    operands, _, result = str(pattern.evaluated_value).replace(" ", "").partition("->")
    one, _, other = operands.partition(",")
    is_pair = len(one) == len(other) == 2 and one[0] != other[0] and one[1] == other[1]
    return is_pair and set(result) == {one[0], other[0]}


def _is_transposed(node: cst.BaseExpression) -> bool:
    return transposed(node) is not None


def _is_spread(node: cst.BaseExpression) -> bool:
    """Return whether a tensor gets another dimension: ``x.unsqueeze(1)`` or ``x[:, None]``."""
    if isinstance(node, cst.Call):
        return called_name(node) == "unsqueeze"
    return isinstance(node, cst.Subscript) and any(map(_is_none, node.slice))


def _is_none(element: cst.SubscriptElement) -> bool:
    return isinstance(element.slice, cst.Index) and dotted(element.slice.value) == "None"
