"""Samples and targets that a mask selects of a batch: of batches of one size, it may select other numbers."""

from __future__ import annotations

import libcst as cst

from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.ranks.data.losses.batch_totals import MEANS, OF_EACH, SUMS, BatchTotals
from ds_migrate.plain.ranks.data.losses.torch_losses import loss_makers
from ds_migrate.syntax.nodes import called_name, dotted, operands
from ds_migrate.syntax.source import SourceFile

_SELECTS = frozenset({"masked_select", "index_select", "pack_padded_sequence"})
_SPLITS = frozenset({"split", "split_with_sizes", "tensor_split", "chunk", "unbind"})
_JOINS = frozenset({"cat", "concat", "concatenate", "hstack", "vstack"})
_ADDS = frozenset({"append", "extend"})
# Calls that keep what they are given, in another form.
KEEPS = frozenset(
    {"view", "reshape", "flatten", "squeeze", "unsqueeze", "contiguous", "float", "double", "long", "int", "to", "cuda",
     "cpu", "detach", "clone", "t"}
)  # fmt: skip
# Calls whose number of indices is that of the samples, or a fixed one.
_INDICES = frozenset({"randperm", "permutation", "randint", "arange", "range", "choice", "multinomial", "argsort"})
_DEPTH = 5


def is_selected(node: cst.CSTNode, file: SourceFile, totals: BatchTotals, depth: int = _DEPTH) -> bool:
    """Return whether something is what a mask selects of a batch: ``x[mask]``, or what is not padding of sequences."""
    return depth > 0 and totals.once(_is_selected, node, file, depth)


def _is_selected(node: cst.CSTNode, file: SourceFile, totals: BatchTotals, depth: int) -> bool:
    if isinstance(node, cst.Call):
        name = called_name(node)
        if name in _SELECTS:
            return totals.differs(node, file) and not _has_fixed_index(node, file)
        if name in _JOINS and any(is_selected(one, file, totals, depth - 1) for one in _joined(node, file, totals)):
            return True
        given = operands(node) if _is_of_each(node, file, totals) else []
        return any(is_selected(part, file, totals, depth) for part in given)
    if isinstance(node, cst.BinaryOperation):
        return any(is_selected(side, file, totals, depth) for side in (node.left, node.right))
    if isinstance(node, cst.Attribute):
        return node.attr.value == "data" and is_selected(node.value, file, totals, depth)
    if isinstance(node, cst.Name):
        return any(is_selected(value, file, totals, depth - 1) for value in _values(node, file, totals))
    if not isinstance(node, cst.Subscript):
        return False
    first = node.slice[0].slice
    if _packs(node.value, file, totals):  # its numbers are the first of its parts
        return True
    if _is_whole(first):
        return is_selected(node.value, file, totals, depth)
    if not isinstance(first, cst.Index) or not totals.differs(node.value, file) or _is_kept(node.value, file, totals):
        return False
    return totals.differs(first.value, file) and not _is_fixed(first.value, file)


def _is_whole(index: cst.BaseSlice) -> bool:
    """Return whether an index keeps all samples: ``x[:, 0]``, ``x[..., 0]``."""
    if isinstance(index, cst.Slice):
        return index.lower is None and index.upper is None and index.step is None
    return isinstance(index, cst.Index) and isinstance(index.value, cst.Ellipsis)


def _is_of_each(call: cst.Call, file: SourceFile, totals: BatchTotals) -> bool:
    """Return whether a call gives something for each sample: a model's output, a loss that is not reduced."""
    is_known = called_name(call) in KEEPS | OF_EACH | MEANS | SUMS or any(loss_makers(call, file, totals.flow))
    called = of_kind(totals.flow.values(call.func, file), Kind.MODULE, Kind.PART, Kind.INSTANCE, Kind.OBJECT)
    return (is_known or bool(called)) and not totals.is_total(call, file)


def _joined(call: cst.Call, file: SourceFile, totals: BatchTotals) -> list[cst.BaseExpression]:
    """Return what a call joins: the items of a list that is written there, or that the program adds to one."""
    given = call.args[0].value if call.args else None
    if isinstance(given, (cst.List, cst.Tuple)):
        return [element.value for element in given.elements]
    if not isinstance(given, (cst.Name, cst.Attribute)):
        return [given.elt] if isinstance(given, cst.BaseSimpleComp) else []
    variable = totals.flow.variable(given, file)
    return [
        arg.value
        for one in file.nodes(cst.Call)
        if isinstance(one.func, cst.Attribute) and one.func.attr.value in _ADDS
        and isinstance(one.func.value, type(given)) and totals.flow.variable(one.func.value, file) == variable
        for arg in one.args
    ]  # fmt: skip


def _values(name: cst.Name, file: SourceFile, totals: BatchTotals) -> list[cst.BaseExpression]:
    """Return what a name is set to, or split of; of a packed sequence, its numbers are the first part."""
    scopes = totals.flow.scopes(file)
    values = [value for value in scopes.assigned(name) if value is not name]
    unpacked = scopes.unpacked(name)
    values += [value for value, index in unpacked if index == 0 and _packs(value, file, totals)]
    calls = [value for value, _ in unpacked if isinstance(value, cst.Call) and called_name(value) in _SPLITS]
    return values + [part for call in calls for part in operands(call)]


def _packs(node: cst.BaseExpression, file: SourceFile, totals: BatchTotals) -> bool:
    """Return whether an expression is a packed sequence."""
    is_packed = isinstance(node, cst.Call) and called_name(node) == "pack_padded_sequence"
    return is_packed and totals.differs(node, file)


def _is_kept(container: cst.BaseExpression, file: SourceFile, totals: BatchTotals) -> bool:
    """Return whether something is made of no batch: it has an item for each index of one, as a memory bank."""
    root = container
    while isinstance(root, cst.Attribute) and dotted(root.value) != "self":
        root = root.value
    values = totals.flow.scopes(file).assigned(root) if isinstance(root, (cst.Name, cst.Attribute)) else []
    return bool(values) and not any(totals.differs(value, file) for value in values)


def _has_fixed_index(call: cst.Call, file: SourceFile) -> bool:
    is_index = called_name(call) == "index_select"
    return is_index and any(_is_fixed(arg.value, file) for arg in call.args)


def _is_fixed(index: cst.BaseExpression, file: SourceFile, depth: int = _DEPTH) -> bool:
    """Return whether an index chooses as many of any batch, as ``torch.randperm(len(x))`` does."""
    if depth and isinstance(index, cst.Name):
        values = file.values_of({index.value}, file.function(index) or file.module)
        return any(_is_fixed(value, file, depth - 1) for value in values if dotted(value) != index.value)
    if isinstance(index, cst.Subscript):
        return _is_fixed(index.value, file, depth)
    if not isinstance(index, cst.Call):
        return False
    is_kept = called_name(index) in KEEPS and isinstance(index.func, cst.Attribute)
    is_made = called_name(index) in _INDICES
    return is_made or (is_kept and isinstance(index.func, cst.Attribute) and _is_fixed(index.func.value, file, depth))
