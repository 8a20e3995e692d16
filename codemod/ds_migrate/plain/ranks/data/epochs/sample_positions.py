"""Rows that a loop chooses by its position in a loader: on several ranks, those of its share begin at 0 on each one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from ds_migrate.plain.dataflow.by_rank.rank_values import RankValues
from ds_migrate.plain.dataflow.containers.iteration import counts_items
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.decisions.plan import Note
from ds_migrate.plain.ranks.data.losses.sample_values import SampleValues
from ds_migrate.plain.recognition.batches.loaders import loaders_of
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import called_name, children, dotted, indices_of, set_values, targets, walk, without_index
from ds_migrate.syntax.one_line import expression_text
from ds_migrate.syntax.source import SourceFile

_DEPTH = 3  # of names between an index and the position
_FORMS = frozenset({"list", "tensor", "as_tensor", "LongTensor", "array"})
_MOVES = frozenset({"to", "cuda", "long", "cpu"})
_ADVICE = "have the dataset return the index of each sample, and choose rows by it"


def sample_positions(
    files: Iterable[SourceFile], values: RankValues, samples: SampleValues, flow: Flow
) -> Iterator[Note]:
    """Yield a note for each array or module whose rows a loop over a share chooses by its position in the loader."""
    for file in files:
        for loop in file.nodes(cst.For):
            if not values.are_shares(loaders_of(loop.iter, file, flow)):
                continue
            position = _Position(loop, file, flow)
            seen = set[str]()
            for node, rows in position.rows(samples):
                text = expression_text(rows)
                if text not in seen:
                    seen.add(text)
                    message = (
                        f"rows of {text} are chosen by the position in the loader, and each rank goes through a share "
                        "of it: a row belongs to another sample on each rank"
                    )
                    yield Note(Code.PLAIN_AGREEMENT, file, node, message, _ADVICE)


class _Position:
    """The position of a loop in the data that it goes through: its counter times a size, or a sum of sizes."""

    def __init__(self, loop: cst.For, file: SourceFile, flow: Flow) -> None:
        self._loop = loop
        self._file = file
        self._lines: list[cst.Assign | cst.AugAssign] = file.nodes(cst.Assign, cst.AugAssign, below=loop.body)
        is_counted = isinstance(loop.target, cst.Tuple) and counts_items(loop.iter, file, flow.scopes(file))
        counted = [loop.target.elements[0].value] if isinstance(loop.target, cst.Tuple) and is_counted else []
        begun = set(_begun_before(loop, file))
        changed = [(name, line) for line in self._lines for name in map(dotted, targets(line)) if name in begun]
        self._offsets = {name for name, line in changed if self._adds_to(name, line)}
        self._counters = {dotted(name) for name in counted}
        self._counters |= {name for name, line in changed if isinstance(line, cst.AugAssign)} - self._offsets

    def rows(self, samples: SampleValues) -> Iterator[tuple[cst.CSTNode, cst.BaseExpression]]:
        """Yield the places that choose rows, each with what these are of."""
        if not self._counters and not self._offsets:
            return
        for node in self._file.nodes(cst.Subscript, below=self._loop.body):
            if any(self._holds(element.slice, _DEPTH) for element in node.slice):
                yield node, without_index(node)
        for line in self._lines:  # of one sample, or one batch
            for target in targets(line):
                is_row = any(dotted(index) in self._counters for index in indices_of(target))
                if is_row and samples.holds(line.value, self._file):
                    yield line, without_index(target)
        for call in self._file.nodes(cst.Call, below=self._loop.body):
            if any(self._is_list(arg.value, _DEPTH) for arg in call.args):
                yield call, call.func

    def _holds(self, node: cst.CSTNode, depth: int) -> bool:
        """Return whether an index is made of the position."""
        if isinstance(node, cst.Name):
            return node.value in self._offsets or any(self._holds(value, depth - 1) for value in self._set(node, depth))
        if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Multiply):
            sides = (node.left, node.right)
            return any(isinstance(part, cst.Name) and part.value in self._counters for s in sides for part in walk(s))
        if isinstance(node, (cst.Subscript, cst.Attribute, cst.Lambda)):
            return False
        return any(self._holds(part, depth) for part in children(node))

    def _is_list(self, node: cst.BaseExpression, depth: int) -> bool:
        """Return whether an expression is the positions of the samples of a batch, one after the other."""
        if isinstance(node, cst.Name):
            return any(self._is_list(value, depth - 1) for value in self._set(node, depth))
        if isinstance(node, cst.BinaryOperation):
            parts = [node.left, node.right]
            return self._holds(node, depth) and any(isinstance(part, cst.Call) and _counts(part) for part in parts)
        if not isinstance(node, cst.Call):
            return False
        return self._holds(node, depth) if _counts(node) else any(self._is_list(n, depth) for n in _moved(node))

    def _set(self, name: cst.Name, depth: int) -> Iterator[cst.BaseExpression]:
        for line in self._lines if depth else ():
            if any(dotted(target) == name.value for target in targets(line)):
                yield line.value

    def _adds_to(self, name: str | None, line: cst.Assign | cst.AugAssign) -> bool:
        """Return whether a line adds the size of a batch to a number, itself or by another name: ``start = end``."""
        if isinstance(line, cst.AugAssign):
            return isinstance(line.operator, cst.AddAssign) and not isinstance(line.value, (cst.Integer, cst.Float))
        value = line.value
        made = list(self._set(value, 1)) if isinstance(value, cst.Name) else [value]
        return any(
            isinstance(one, cst.BinaryOperation) and isinstance(one.operator, cst.Add)
            and any(dotted(part) == name for part in (one.left, one.right))
            for one in made
        )  # fmt: skip


def _begun_before(loop: cst.For, file: SourceFile) -> Iterator[str | None]:
    """Yield the names that are set to a number in the block of a loop, before it."""
    block = file.parent(loop)
    for statement in block.body if isinstance(block, (cst.IndentedBlock, cst.Module)) else ():
        if statement is loop:
            return
        for line in statement.body if isinstance(statement, cst.SimpleStatementLine) else ():
            yield from (dotted(target) for target, value in set_values(line) if isinstance(value, cst.Integer))


def _counts(call: cst.Call) -> bool:
    return called_name(call) in ("arange", "range")


def _moved(call: cst.Call) -> list[cst.BaseExpression]:
    """Return what a call gives in another form: ``torch.arange(8)`` of ``torch.arange(8).to(device)``."""
    if called_name(call) in _FORMS:
        return [arg.value for arg in call.args]
    return [call.func.value] if isinstance(call.func, cst.Attribute) and called_name(call) in _MOVES else []
