"""Losses of torch and other libraries that a program calls, as functions or as modules."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.syntax.nodes import argument, called_name, dotted, last_name, number
from ds_migrate.syntax.source import SourceFile

_ENDINGS = ("loss", "cross_entropy", "kl_div", "with_logits")
_LIKELIHOODS = frozenset({"cross_entropy", "nll_loss", "CrossEntropyLoss", "NLLLoss", "NLLLoss2d"})
_IGNORED = -100  # ignore_index, where none is given
_MARKS = frozenset(
    {"where", "masked_fill", "masked_fill_", "full", "full_like", "fill_", "tensor", "pad", "pad_sequence", "append"}
)


def loss_makers(call: cst.Call, file: SourceFile, flow: Flow) -> Iterator[cst.Call]:
    """Yield the calls that have the settings of a loss of torch: of its function, or of what makes its module.

    They are several where a program chooses one of several losses.
    """
    values = flow.values(call.func, file)
    if any(v.kind is Kind.EXTERNAL and _is_loss(v.name, "torch.nn.functional.") for v in values):
        yield call
    for value in flow.in_order(of_kind(values, Kind.OBJECT, Kind.MODULE)):
        maker, home = flow.node(value), flow.file(value)
        if isinstance(maker, cst.Call) and makes_loss(maker, home, flow):
            yield maker


def makes_loss(maker: cst.Call, file: SourceFile, flow: Flow) -> bool:
    """Return whether a call makes the module of a loss of torch."""
    return any(_is_loss(value.name, "torch.nn.") for value in flow.values(maker.func, file))


def library_losses(call: cst.Call, file: SourceFile, flow: Flow) -> Iterator[str]:
    """Yield the functions and classes of libraries that a call may be of, or of whose objects, by their names."""
    values = flow.values(call.func, file)
    yield from (value.name for value in of_kind(values, Kind.EXTERNAL))
    for value in of_kind(values, Kind.OBJECT, Kind.MODULE):
        maker, home = flow.node(value), flow.file(value)
        if isinstance(maker, cst.Call):
            yield from (made.name for made in of_kind(flow.values(maker.func, home), Kind.EXTERNAL))


def reduction_of(maker: cst.Call) -> str:
    """Return how a loss of torch reduces a batch; "" where this is not written."""
    average, given = argument(maker, None, "size_average"), argument(maker, None, "reduction")
    if argument(maker, None, "reduce") is not None:
        return ""
    if given is None:
        old = dotted(average.value) if average is not None else "True"
        return {"True": "mean", "False": "sum"}.get(old or "", "")
    return str(given.value.evaluated_value) if isinstance(given.value, cst.SimpleString) else ""


def divides_by_targets(maker: cst.Call, flow: Flow) -> bool:
    """Return whether a loss of torch is a mean over weights, or over targets that are not ignored."""
    given = [argument(maker, None, name) for name in ("weight", "ignore_index")]
    is_given = any(arg is not None and dotted(arg.value) != "None" for arg in given) or flow.once(_ignores_targets)
    first = maker.args[0] if last_name(maker.func) in ("CrossEntropyLoss", "NLLLoss") and maker.args else None
    is_first = first is not None and first.keyword is None and not first.star  # weight=
    return last_name(maker.func) in _LIKELIHOODS and (is_given or is_first) and reduction_of(maker) == "mean"


def _ignores_targets(flow: Flow) -> bool:
    """Return whether a program marks targets that do not count, by -100 or by the ``ignore_index`` of a loss."""
    return any(flow.attributes("ignore_index")) or any(
        number(node) == _IGNORED and _is_written(node, file) for file, node in flow.nodes(cst.UnaryOperation)
    )


def _is_written(node: cst.CSTNode, file: SourceFile) -> bool:
    """Return whether a number is written into a list or tensor, also by the name of a constant."""
    above = file.parent(node)
    if isinstance(above, cst.IfExp):
        return above.test is not node
    if isinstance(above, cst.Arg):
        call = file.parent(above)
        return isinstance(call, cst.Call) and called_name(call) in _MARKS
    if isinstance(above, cst.Assign) and isinstance(name := above.targets[0].target, cst.Name):
        used = (one for one in file.nodes(cst.Name) if one.value == name.value and one is not name)
        return any(_is_written(one, file) for one in used)
    return isinstance(above, cst.Element) or (
        isinstance(above, cst.Assign) and isinstance(above.targets[0].target, cst.Subscript)
    )


def _is_loss(name: str, prefix: str) -> bool:
    return name.startswith(prefix) and name.lower().endswith(_ENDINGS)
