"""Sizes of what a batch holds, which differ by rank although batches have as many samples: of boxes, of sequences.

A batch itself is never empty. What a program asks to be there may be missing in any share: ``if len(boxes) == 0``. How
long the samples are differs where the program collates them itself, or where they are batches alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import libcst as cst

from ds_migrate.plain.dataflow.by_rank.rank_values import RankValues
from ds_migrate.plain.dataflow.scopes import names_in
from ds_migrate.plain.ranks.data.losses.returned_values import returned_values
from ds_migrate.plain.ranks.data.losses.selected_counts import counted
from ds_migrate.plain.recognition.batches.loaders import loaders_of
from ds_migrate.syntax.branches import tests_around
from ds_migrate.syntax.nodes import argument, called_name, code, dotted, last_name, operands, targets, walk
from ds_migrate.syntax.source import SourceFile

_TESTS = frozenset({"any", "all", "bool", "sum", "max", "min"})
_TYPES = frozenset({"isinstance", "hasattr", "is_tensor", "type"})
_ADDS = frozenset({"append", "add", "extend"})
_ONE = (cst.LessThan, cst.GreaterThanEqual)  # operators by which a comparison with 1 asks for nothing or something
_SPLITS = {"split": 1, "unbind": 0}  # methods that split a tensor, with the position of the dimension
_DEPTH = 4  # of names, and of functions


class BatchSizes:
    """The sizes that a program asks for of its batches.

    Args:
        values: what differs by rank.
        loaders: the calls that make the loaders of which each rank gets a share.
    """

    def __init__(self, values: RankValues, loaders: Iterable[cst.Call]) -> None:
        self._values = values
        self._flow = values.flow
        self._are_long = any(map(_has_samples_of_sizes, loaders))
        self._answers: dict[
            tuple[str, int, int], tuple[cst.CSTNode, bool]
        ] = {}  # with the nodes, which keeps their ids

    def _once(self, question: str, node: cst.CSTNode, depth: int, find: Callable[[], bool]) -> bool:
        """Return the answer to a question about a node, which is found once; no, where it depends on itself."""
        key = question, id(node), depth
        if key not in self._answers:
            self._answers[key] = node, False
            self._answers[key] = node, find()
        return self._answers[key][1]

    def differ(self, test: cst.BaseExpression, file: SourceFile) -> bool:
        """Return whether a condition is one of sizes that differ by rank."""
        return self.ask_for_any(test, file) or self.are_of_samples(test, file)

    def ask_for_any(self, test: cst.BaseExpression, file: SourceFile, depth: int = _DEPTH) -> bool:
        """Return whether a condition asks if a batch has any of something."""
        return self._once("any", test, depth, lambda: self._find_any(test, file, depth))

    def _find_any(self, test: cst.BaseExpression, file: SourceFile, depth: int) -> bool:
        if isinstance(test, cst.UnaryOperation):
            return self.ask_for_any(test.expression, file, depth)
        if isinstance(test, cst.BooleanOperation):
            return any(self.ask_for_any(side, file, depth) for side in (test.left, test.right))
        if isinstance(test, cst.Comparison) and len(test.comparisons) == 1:
            if self._asks_for_type(test.left, file):
                return True
            other = test.comparisons[0]
            is_one = isinstance(other.operator, _ONE) and code(other.comparator) == "1"
            sides = (test.left, other.comparator)
            return (is_one or "0" in map(code, sides)) and any(self._counts(side, file, depth) for side in sides)
        if isinstance(test, cst.Name) and depth:
            return self._is_counted(test, file, depth) or any(
                self.ask_for_any(v, file, depth - 1) for v in self._assigned(test, file) if v is not test
            )
        if not isinstance(test, cst.Call):
            return False
        if called_name(test) in _TESTS and len(test.args) == 1:
            made = test.args[0].value
            return self.ask_for_any(made.elt if isinstance(made, cst.BaseSimpleComp) else made, file, depth)
        if self._asks_for_type(test, file) or any(self._has_some(one, file, depth) for one in counted(test)):
            return True
        return depth > 0 and any(self.ask_for_any(part, home, depth - 1) for home, part in self._decide(test, file))

    def _decide(self, call: cst.Call, file: SourceFile) -> Iterator[tuple[SourceFile, cst.BaseExpression]]:
        """Yield what a function of the program returns, and the conditions under which it does."""
        for home, value in returned_values(call, file, self._flow):
            yield home, value
            yield from ((home, test) for test, _ in tests_around(home, home.statement(value)))

    def _counts(self, node: cst.BaseExpression, file: SourceFile, depth: int) -> bool:
        """Return whether a number is made of sizes of what a batch holds."""
        return self._once("counts", node, depth, lambda: self._find_counts(node, file, depth))

    def _find_counts(self, node: cst.BaseExpression, file: SourceFile, depth: int) -> bool:
        for part in walk(node):
            if any(self._has_some(one, file, depth) for one in counted(part)):
                return True
            if not depth:
                continue
            if isinstance(part, cst.Name):
                if self._is_counted(part, file, depth):
                    return True
                changes = self._flow.scopes(file).nodes(part, cst.AugAssign)
                added = [line.value for line in changes if dotted(line.target) == part.value]
                made = [value for value in (*self._assigned(part, file), *added) if value is not part]
                if any(self._counts(value, file, depth - 1) for value in made):
                    return True
            elif isinstance(part, cst.Call):
                returned = returned_values(part, file, self._flow)
                if any(self._counts(value, home, depth - 1) for home, value in returned):
                    return True
        return False

    def _has_some(self, node: cst.BaseExpression, file: SourceFile, depth: int) -> bool:
        """Return whether something is of a batch, or is collected of what a batch has."""
        is_counted = isinstance(node, cst.Name) and depth > 0 and self._is_counted(node, file, depth)
        return is_counted or self._is_of_batch(node, file)

    def _is_counted(self, name: cst.Name, file: SourceFile, depth: int) -> bool:
        """Return whether a name is set, counted up or added to only where a batch has any of something."""
        return self._once("counted", name, depth, lambda: self._find_counted(name, file, depth))

    def _find_counted(self, name: cst.Name, file: SourceFile, depth: int) -> bool:
        scopes = self._flow.scopes(file)
        lines: list[cst.CSTNode] = [
            line for line in scopes.nodes(name, cst.Assign, cst.AugAssign) if name.value in _names_of(line)
        ]
        lines += [
            call for call in scopes.nodes(name, cst.Call)
            if isinstance(call.func, cst.Attribute) and call.func.attr.value in _ADDS
            and dotted(call.func.value) == name.value
        ]  # fmt: skip
        return any(
            self.ask_for_any(outer.test, file, depth - 1)
            for line in lines if self._is_in_loop_within(line, file)
            for outer in self._values.conditions(line, file)
        )  # fmt: skip

    def _is_in_loop_within(self, node: cst.CSTNode, file: SourceFile) -> bool:
        """Return whether the nearest loop around a node runs over what a batch holds, and draws none."""
        loop = next((outer for outer in file.ancestors(node) if isinstance(outer, (cst.For, cst.While))), None)
        return isinstance(loop, cst.For) and not self._values.are_shares(loaders_of(loop.iter, file, self._flow))

    def _asks_for_type(self, call: cst.BaseExpression, file: SourceFile) -> bool:
        """Return whether a call asks if a loss is still the number that it began with, as nothing was added to it."""
        asked = call.args[0].value if isinstance(call, cst.Call) and call.args else None
        if not isinstance(call, cst.Call) or called_name(call) not in _TYPES or not isinstance(asked, cst.Name):
            return False
        made = self._assigned(asked, file)
        made += [part for value in made if isinstance(value, cst.Call)
                 for _, part in returned_values(value, file, self._flow)]  # fmt: skip
        is_number = any(isinstance(value, (cst.Integer, cst.Float)) for value in made)
        return is_number and self._values.differs(asked, file)

    def are_of_samples(self, node: cst.BaseExpression, file: SourceFile, depth: int = _DEPTH) -> bool:
        """Return whether an expression has the length of samples, rather than the number of them, and it differs."""
        return self._are_long and self._once("samples", node, depth, lambda: self._find_samples(node, file, depth))

    def _find_samples(self, node: cst.BaseExpression, file: SourceFile, depth: int) -> bool:
        for part in walk(node):
            is_of_sample = not _is_number_of_samples(part, file)
            if is_of_sample and any(self._is_of_batch(one, file) for one in counted(part)):
                return True
            made = self._assigned(part, file) if isinstance(part, cst.Name) and depth else ()
            if any(self.are_of_samples(value, file, depth - 1) for value in made if value is not part):
                return True
        return False

    def splits_samples(self, node: cst.BaseExpression, file: SourceFile) -> bool:
        """Return whether a call splits the samples of a batch by their length: ``x.split(20, dim=1)``."""
        position = _SPLITS.get(last_name(node.func) or "") if isinstance(node, cst.Call) and self._are_long else None
        if not isinstance(node, cst.Call) or position is None:
            return False
        is_method = not (dotted(node.func) or "").startswith("torch.")
        along = argument(node, position if is_method else position + 1, "dim")
        is_of_samples = along is not None and code(along.value) != "0"
        return is_of_samples and any(self._is_of_batch(one, file) for one in operands(node))

    def _is_of_batch(self, node: cst.BaseExpression, file: SourceFile, depth: int = _DEPTH) -> bool:
        """Return whether something is a part of a batch, or made of one; no loader, and nothing that is collected."""
        while isinstance(node, (cst.Subscript, cst.Attribute)) and dotted(node.value) != "self":
            node = node.value
        return self._once("batch", node, depth, lambda: self._find_batch(node, file, depth))

    def _find_batch(self, node: cst.BaseExpression, file: SourceFile, depth: int) -> bool:
        if depth == 0 or not self._values.differs(node, file) or self._values.is_share(node, file):
            return False
        if isinstance(node, cst.Call):
            parts = [arg.value for arg in node.args]
            parts += [node.func.value] if isinstance(node.func, cst.Attribute) else []
            return any(self._is_drawn(part, file, depth) for part in parts)
        if isinstance(node, cst.Name):
            scopes = self._flow.scopes(file)
            loops = [loop for loop in scopes.nodes(node, cst.For) if node.value in names_in(loop.target)]
            loops += [
                outer.for_in for outer in file.ancestors(node)
                if isinstance(outer, cst.BaseComp) and node.value in names_in(outer.for_in.target)
            ]  # fmt: skip
            if any(self._is_drawn(loop.iter, file, depth) for loop in loops):
                return True
        if not isinstance(node, (cst.Name, cst.Attribute)):
            return False
        sources = [(value, file) for value in self._assigned(node, file)]
        sources += list(self._flow.callers.given(node, file)) if isinstance(node, cst.Name) else []
        return any(self._is_drawn(value, home, depth - 1) for value, home in sources if value is not node)

    def _is_drawn(self, node: cst.BaseExpression, file: SourceFile, depth: int) -> bool:
        """Return whether something gives batches, or parts of one."""
        is_loader = self._values.are_shares(loaders_of(node, file, self._flow))
        return is_loader or self._is_of_batch(node, file, depth)

    def _assigned(self, node: cst.Name | cst.Attribute, file: SourceFile) -> list[cst.BaseExpression]:
        """Return what a name is assigned, also with others in a line."""
        scopes = self._flow.scopes(file)
        lines = scopes.nodes(node, cst.Assign) if isinstance(node, cst.Name) else ()
        unpacked = [line.value for line in lines if dotted(node) in _names_of(line)]
        return [*scopes.assigned(node), *unpacked]


def _names_of(line: cst.Assign | cst.AugAssign) -> Sequence[str]:
    return [name for target in targets(line) for name in names_in(target)]


def _has_samples_of_sizes(maker: cst.Call) -> bool:
    """Return whether samples of a loader may have several sizes: it collates them itself, or gives them alone."""
    size = argument(maker, 1, "batch_size")
    is_single = size is not None and code(size.value) in ("1", "None")
    return is_single or any(argument(maker, None, name) is not None for name in ("collate_fn", "batch_sampler"))


def _is_number_of_samples(node: cst.CSTNode, file: SourceFile) -> bool:
    """Return whether a size is that of the first dimension: ``len(x)``, ``x.size(0)`` and ``x.shape[0]``."""
    if isinstance(node, cst.Call) and called_name(node) == "len":
        return not any(isinstance(part, cst.Subscript) for arg in node.args for part in walk(arg.value)) and not any(
            isinstance(outer, cst.BaseComp) and code(node.args[0].value) in names_in(outer.for_in.target)
            for outer in file.ancestors(node)
        )
    index: cst.BaseExpression | None = None
    if isinstance(node, cst.Call) and called_name(node) == "size":
        index = node.args[0].value if node.args else None
    around = file.parent(node)
    if isinstance(node, cst.Attribute) and isinstance(around, cst.Subscript):
        first = around.slice[0].slice
        index = first.value if isinstance(first, cst.Index) else None
    return index is not None and code(index) == "0"
