"""Conditions that leave out batches: a rank whose share has nothing to train, or nothing good, cannot follow rank 0.

Behind ``if n == 0: continue`` a program divides by ``n``, and takes the mean of what a mask selects. Where rank 0 alone
decided, another rank would do so with its own zero, or train what ``if not is_valid(batch): continue`` leaves out.
"""

from __future__ import annotations

from collections.abc import Callable

import libcst as cst

from ds_migrate.plain.dataflow.by_rank.rank_values import RankValues
from ds_migrate.plain.decisions.plan import Note
from ds_migrate.plain.edits.expressions import wrap
from ds_migrate.plain.edits.runtime_names import RuntimeNames
from ds_migrate.plain.ranks.agreement.agreed_conditions import FINITE, is_backpropagated
from ds_migrate.plain.ranks.agreement.batch_sizes import BatchSizes
from ds_migrate.plain.ranks.agreement.common_operations import CommonOperations, Condition, test_of
from ds_migrate.plain.recognition.batches.loaders import loaders_of
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import called_name, code, last_name
from ds_migrate.syntax.source import SourceFile

Differs = Callable[[cst.BaseExpression, SourceFile], bool]
ALL, ANY = "all_ranks", "any_rank"
_COUNTS = frozenset({"len", "size", "numel", "nelement", "count_nonzero"})
_EXTREMES = frozenset({"max", "min", "amax", "amin"})
_TESTS = frozenset({"any", "all"})
_FEW = frozenset({"0", "1", "2"})


class EmptyBatches:
    """The conditions of a program that leave out batches of which a rank's share has nothing to train.

    Args:
        values: what differs by rank.
        differs: returns whether a condition differs, by such values or by how many of them there are.
        sizes: those that the program asks for of its batches.
        common: the operations that all ranks do together.
    """

    def __init__(self, values: RankValues, differs: Differs, sizes: BatchSizes, common: CommonOperations) -> None:
        self._values = values
        self._differs = differs
        self._sizes = sizes
        self._common = common

    def agree(self, node: Condition, file: SourceFile, runtime: RuntimeNames) -> Note | None:
        """Ask all ranks for a condition, and return what is to be reviewed; None where rank 0 may decide."""
        helper = self._helper(node, file)
        if helper is None:
            return None
        test = test_of(node)
        if file.edits.once(test, helper):
            wrap(file, test, runtime.name(file, helper))
        message = (
            "all ranks leave a batch out where the condition of one leaves it out: 8 ranks leave out 34% of the "
            "batches where it holds for 5% of the shares"
        )
        advice = "let every rank train, without anything to train by a loss of zero, as (output * 0).sum()"
        return Note(Code.PLAIN_AGREEMENT, file, test, message, advice)

    def _helper(self, node: Condition, file: SourceFile) -> str | None:
        """Return which ranks decide so that none trains what its own condition leaves out; None where rank 0 may."""
        if isinstance(node, cst.While) and self._asks_for_any(node.test, file) and self._common.holds(node.body):
            return ALL if self._is_of_batch(node, file, set()) else None
        if not isinstance(node, cst.If):
            return None
        if not self._asks_for_any(node.test, file) and not self._asks_function(node.test, file):
            return None
        return (ALL if self._common.holds(node.body) else ANY) if self.leaves_out(node, file) else None

    def leaves_out(self, node: Condition, file: SourceFile) -> bool:
        """Return whether a condition decides if a batch is trained."""
        if not isinstance(node, cst.If):
            return False
        other = node.orelse is not None and self._common.holds(node.orelse)
        is_left_out = other or _leaves_out(node, file)
        return self._common.holds(node.body) != is_left_out and self._is_of_batch(node, file, set())

    def _asks_function(self, test: cst.BaseExpression, file: SourceFile) -> bool:
        """Return whether a condition is what a function finds of a batch: ``not is_valid(batch)``."""
        if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
            return self._asks_function(test.expression, file)
        if isinstance(test, cst.BooleanOperation):
            return self._asks_function(test.left, file) or self._asks_function(test.right, file)
        is_asked = isinstance(test, cst.Call) and called_name(test) not in FINITE
        return is_asked and self._differs(test, file)

    def _asks_for_any(self, test: cst.BaseExpression, file: SourceFile) -> bool:
        """Return whether a condition asks if there is something, or how large; not whether a loss is zero."""
        if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
            return self._asks_for_any(test.expression, file)
        if isinstance(test, cst.BooleanOperation):
            return self._asks_for_any(test.left, file) or self._asks_for_any(test.right, file)
        if not self._differs(test, file):
            return False
        if isinstance(test, cst.Comparison) and len(test.comparisons) == 1:
            limit = test.comparisons[0].comparator
            if isinstance(test.comparisons[0].operator, (cst.In, cst.NotIn)):
                return True
            if code(limit) == "None" or any(_is_count(side) or _is_extreme(side) for side in (test.left, limit)):
                return True
            if self._sizes.differ(test, file):
                return True
            return code(limit) in _FEW and not is_backpropagated(test.left, file)
        if isinstance(test, cst.Call):
            return called_name(test) in _TESTS | _COUNTS or self._sizes.ask_for_any(test, file)
        return isinstance(test, (cst.Name, cst.Attribute))

    def _is_of_batch(self, node: cst.CSTNode, file: SourceFile, seen: set[int]) -> bool:
        """Return whether the nearest loop around a node, in its function or those that call it, draws batches."""
        for outer in file.ancestors(node):
            if isinstance(outer, (cst.For, cst.While)):
                return self._draws(outer, file)
            if isinstance(outer, cst.FunctionDef):
                break
        function = file.function(node)
        if function is None or id(function) in seen:
            return False
        seen.add(id(function))
        return any(self._is_of_batch(call, home, seen) for home, call in self._values.flow.callers.of(function))

    def _draws(self, loop: cst.For | cst.While, file: SourceFile) -> bool:
        if isinstance(loop, cst.For) and self._values.are_shares(loaders_of(loop.iter, file, self._values.flow)):
            return True
        calls = file.nodes(cst.Call, below=loop.body)
        return any(last_name(call.func) == "next" and self._values.differs(call, file) for call in calls)


def _leaves_out(node: cst.If, file: SourceFile) -> bool:
    """Return whether a condition leaves out the rest of a round, or of a function that is called in one."""
    if any(file.function(jump) is file.function(node) for jump in file.nodes(cst.Continue, below=node.body)):
        return True
    for outer in file.ancestors(node):
        if isinstance(outer, (cst.For, cst.While)):
            return False  # what returns in a loop ends it
        if isinstance(outer, cst.FunctionDef):
            break
    return bool(file.nodes(cst.Return, below=node.body))


def _is_extreme(node: cst.BaseExpression) -> bool:
    """Return whether an expression is the largest or smallest of what a batch has, as the longest of its sequences."""
    while isinstance(node, cst.Subscript):  # x.max(0)[0]
        node = node.value
    if isinstance(node, cst.Call) and called_name(node) in ("item", "int", "float"):
        inner = node.func.value if isinstance(node.func, cst.Attribute) else node.args[0].value if node.args else node
        return inner is not node and _is_extreme(inner)
    return isinstance(node, cst.Call) and called_name(node) in _EXTREMES


def _is_count(node: cst.BaseExpression) -> bool:
    if isinstance(node, cst.Subscript):
        return isinstance(node.value, cst.Attribute) and node.value.attr.value == "shape"
    return isinstance(node, cst.Call) and called_name(node) in _COUNTS
