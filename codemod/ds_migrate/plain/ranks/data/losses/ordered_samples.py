"""Losses over the samples of a batch that come first in an order of all, as the hardest: each rank orders its share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from ds_migrate.plain.dataflow.scopes import names_in
from ds_migrate.plain.decisions.plan import Note
from ds_migrate.plain.ranks.data.losses.batch_totals import MEANS, SUMS, BatchTotals
from ds_migrate.plain.ranks.data.losses.loss_parts import LossPart
from ds_migrate.plain.ranks.data.losses.returned_values import returned_values
from ds_migrate.plain.ranks.data.losses.torch_losses import loss_makers, reduction_of
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import argument, called_name, dotted, number, single_index, targets, walk
from ds_migrate.syntax.source import SourceFile

# With the position of dim= behind the tensor.
_ORDERS = {"topk": 1, "kthvalue": 1, "sort": 0, "argsort": 0, "msort": 0}
_LIBRARIES = frozenset({"torch", "np", "numpy"})
_FLATTENS = frozenset({"view", "reshape", "flatten", "ravel"})
_DEPTH = 6


def ordered_samples(parts: Iterable[LossPart], totals: BatchTotals) -> Iterator[Note]:
    """Yield a note for each function where a loss is made of samples by an order of the whole batch."""
    finder = _Finder(totals)
    seen = set[int]()
    for file, node, is_in_model in parts:
        function = id(file.function(node) or file.module)
        if function not in seen and not is_in_model and isinstance(node, cst.Call) and finder.orders(node, file):
            seen.add(function)
            message = "this orders the samples of a batch, as to take the hardest: each rank orders those of its share"
            advice = "leave it, as DistributedDataParallel trains so, too, or gather the losses of all ranks for it"
            yield Note(Code.PLAIN_SAMPLER, file, node, message, advice)


class _Finder:
    def __init__(self, totals: BatchTotals) -> None:
        self._totals = totals

    def orders(self, call: cst.Call, file: SourceFile) -> bool:
        """Return whether a call orders the samples of a batch by what differs by rank."""
        name = called_name(call)
        if name not in _ORDERS:
            return False
        is_method = isinstance(call.func, cst.Attribute) and (dotted(call.func.value) or "") not in _LIBRARIES
        if not is_method and not call.args:
            return False
        operand = call.func.value if is_method and isinstance(call.func, cst.Attribute) else call.args[0].value
        position = _ORDERS[name] + (0 if is_method else 1)
        dim = argument(call, position, "dim") or argument(call, None, "axis")
        if not self._totals.differs(operand, file) or self._is_for_packing(call, file):
            return False
        if dim is not None and (first := number(dim.value)) is not None:
            return first == 0 or (first == -1 and self._is_flat(operand, file, _DEPTH))
        return name == "msort" or self._is_flat(operand, file, _DEPTH)

    def _is_for_packing(self, call: cst.Call, file: SourceFile) -> bool:
        """Return whether a batch is sorted by lengths, by which it is packed: all samples stay."""
        line = next((a for a in file.ancestors(call) if isinstance(a, cst.Assign)), None)
        names = {name for target in (targets(line) if line is not None else ()) for name in names_in(target)}
        for home, packing in self._totals.flow.nodes(cst.Call):
            lengths = argument(packing, 1, "lengths") if called_name(packing) == "pack_padded_sequence" else None
            if lengths is not None and self._has(lengths.value, home, names, file.function(call), _DEPTH):
                return True
        return False

    def _has(
        self, node: cst.CSTNode, file: SourceFile, names: set[str], function: cst.FunctionDef | None, depth: int
    ) -> bool:
        """Return whether an expression is made of one of these names of a function, through what calls give."""
        for name in (part for part in walk(node) if isinstance(part, cst.Name)):
            if file.function(name) is function and name.value in names:
                return True
            if depth and any(
                self._has(value, home, names, function, depth - 1)
                for value, home in self._totals.flow.callers.given(name, file)
            ):
                return True
        return False

    def _is_flat(self, node: cst.CSTNode, file: SourceFile, depth: int) -> bool:
        """Return whether an expression has, as far as the program shows, one number for each sample."""
        if depth == 0:
            return False
        if isinstance(node, cst.Call):
            return self._is_flat_call(node, file, depth)
        if isinstance(node, cst.Name):
            return any(
                self._is_flat(value, home, depth - 1) for value, home in self._totals.flow.callers.sources(node, file)
            )
        if isinstance(node, cst.Attribute):
            return self._is_flat(node.value, file, depth)
        if isinstance(node, cst.Subscript):
            return single_index(node) is not None and self._is_flat(node.value, file, depth)
        if isinstance(node, cst.BinaryOperation):
            return any(self._is_flat(side, file, depth) for side in (node.left, node.right))
        return isinstance(node, cst.UnaryOperation) and self._is_flat(node.expression, file, depth)

    def _is_flat_call(self, call: cst.Call, file: SourceFile, depth: int) -> bool:
        name = called_name(call)
        if name in _FLATTENS:
            dims = [number(arg.value) for arg in call.args]
            return dims == [-1] or (not dims and name != "view")
        reductions = set(map(reduction_of, loss_makers(call, file, self._totals.flow)))
        if reductions:
            return reductions == {"none"}
        if name in MEANS | SUMS | {"norm", "squeeze", "gather"}:
            dims = [number(part.value) for part in walk(call) if isinstance(part, cst.Arg)]
            return name == "gather" or any(dim not in (None, 0) for dim in dims)
        returned = list(returned_values(call, file, self._totals.flow))
        if returned:
            return any(self._is_flat(value, home, depth - 1) for home, value in returned)
        return isinstance(call.func, cst.Attribute) and self._is_flat(call.func.value, file, depth)
