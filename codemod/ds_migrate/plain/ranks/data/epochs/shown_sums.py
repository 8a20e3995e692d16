"""Sums over an epoch that a program shows or compares undivided: over a rank's share of the data they are too small."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

import libcst as cst

from ds_migrate.plain.dataflow.branches.set_names import latest_value
from ds_migrate.plain.dataflow.by_rank.rank_values import RankValues
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.decisions.plan import Note
from ds_migrate.plain.ranks.data.epochs.epoch_sums import EpochSum, EpochSums, is_set_behind
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import called_name, dotted, indices_of, mentions, number, without_index
from ds_migrate.syntax.source import SourceFile

_SHOWS = frozenset(
    {"print", "debug", "info", "warning", "write", "log", "add_scalar", "add_scalars", "log_metric", "log_metrics"}
)  # fmt: skip
_SUM = "the sum over a rank's share of the data: on n ranks it is about n times smaller"
_SHOWN = (
    f"this shows {_SUM}",
    "show an average, or multiply mean_over_ranks() of it, on all ranks, by torch.distributed.get_world_size()",
)
_COMPARED = (f"this compares {_SUM}", "compare an average")
_SAME = frozenset({
    "float", "int", "str", "round", "format", "item", "tolist", "detach", "cpu", "numpy", "dict", "list", "sorted",
    "items", "values",
})  # fmt: skip


def shown_sums(
    makers: Iterable[tuple[SourceFile, cst.Call]], files: list[SourceFile], values: RankValues, flow: Flow
) -> Iterator[Note]:
    """Yield a note for each sum over a share that is shown or compared after its loop, undivided, and not by its count.

    Args:
        makers: the calls that make the loaders of which each rank has a share.
    """
    sums = EpochSums({id(maker) for _, maker in makers}, flow)
    noted = set[tuple[int, str]]()
    for file in files:
        shows = [(call, _shown(call.args), _SHOWN) for call in file.nodes(cst.Call) if called_name(call) in _SHOWS]
        for node, parts, messages in (*shows, *_compared(file, values)):
            for shown, following in pairwise([*parts, None]):
                sources = _sources(shown, file, flow) if shown is not None else ()
                part, found = next(((one, s) for one in sources if (s := sums.find(node, one, file))), (None, None))
                if part is None or found is None or not _is_of_data(found, values) or _is_changed(part, found):
                    continue
                is_of_count = following is not None and _is_count(following, sums.find(node, following, file), values)
                key = id(found.loop), dotted(without_index(part)) or ""
                if not is_of_count and key not in noted:
                    noted.add(key)
                    yield Note(Code.PLAIN_SAMPLER, file, node, *messages)


def _compared(
    file: SourceFile, values: RankValues
) -> Iterator[tuple[cst.Comparison, Iterator[cst.BaseExpression], tuple[str, str]]]:
    """Yield the comparisons that decide something by how large a number is: the other side is the same on all ranks."""
    for node in file.nodes(cst.Comparison):
        sides = [node.left, *(target.comparator for target in node.comparisons)]
        decides = isinstance(file.parent(node), (cst.If, cst.While, cst.BooleanOperation, cst.UnaryOperation))
        apart = [side for side in sides if values.differs(side, file)]
        if decides and len(sides) == 2 and len(apart) == 1 and number(sides[sides[0] is apart[0]]) != 0:
            yield node, _parts(apart[0]), _COMPARED


def _shown(args: Iterable[cst.Arg]) -> Iterator[cst.BaseExpression]:
    """Yield the names, attributes and calls whose values are shown, in order."""
    for arg in args:
        yield from _parts(arg.value)


def _sources(node: cst.BaseExpression, file: SourceFile, flow: Flow) -> Iterator[cst.BaseExpression]:
    """Yield an expression; of a name, also what it is given last, or what a loop takes it from."""
    yield node
    if isinstance(node, cst.Name):
        value = latest_value(node, file, flow.scopes(file))
        around = [outer for outer in file.ancestors(node) if isinstance(outer, cst.For)]
        items = [loop.iter for loop in around if mentions(loop.target, {node.value})]
        for source in (*items, *([value] if value is not None else ())):
            yield from _parts(source)


def _parts(node: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    if isinstance(node, (cst.Name, cst.Attribute, cst.Subscript)):
        yield node
    elif isinstance(node, cst.Call):
        if called_name(node) not in _SAME:
            yield node
            return
        if isinstance(node.func, cst.Attribute):
            yield from _parts(node.func.value)
        yield from _shown(node.args)
    elif isinstance(node, cst.FormattedString):
        for part in node.parts:
            if isinstance(part, cst.FormattedStringExpression):
                yield from _parts(part.expression)
    elif isinstance(node, cst.BinaryOperation):
        is_text = isinstance(node.left, (cst.SimpleString, cst.FormattedString, cst.ConcatenatedString))
        if is_text or isinstance(node.operator, (cst.Add, cst.Subtract, cst.Multiply)):
            yield from (*_parts(node.left), *_parts(node.right))
    elif isinstance(node, (cst.Tuple, cst.List)):
        for element in node.elements:
            yield from _parts(element.value)
    elif isinstance(node, cst.Dict):
        for item in node.elements:
            yield from _parts(item.value)


def _is_of_data(found: EpochSum, values: RankValues) -> bool:
    """Return whether a sum is made of the data: not of times, and no number of samples or batches."""
    return any(
        any(values.differs(part, file) for part in (value, *indices_of(target))) or values.depends(line, file)
        for file, line, target, value in found.added
    )


def _is_count(node: cst.BaseExpression, found: EpochSum | None, values: RankValues) -> bool:
    """Return whether a number is that of samples or batches, as in ``"{}/{}".format(correct, seen)``."""
    if found is not None:
        return not _is_of_data(found, values)
    return number(node) is not None or (isinstance(node, cst.Call) and dotted(node.func) == "len")


def _is_changed(node: cst.BaseExpression, found: EpochSum) -> bool:
    """Return whether more is made of a sum behind its loop, as an average."""
    name = dotted(without_index(node))
    return name is not None and is_set_behind(name, found, found.file.function(found.loop) or found.file.module)
