"""Buffers that modules make of the batches that they get: on several ranks, each rank has others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeGuard

import libcst as cst

from ds_migrate.plain.dataflow.by_rank.rank_values import RankValues
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.registered_buffers import registered_buffers
from ds_migrate.plain.dataflow.scopes import names_in
from ds_migrate.plain.dataflow.values import Variable
from ds_migrate.plain.decisions.plan import Note
from ds_migrate.plain.ranks.data.losses.sample_values import SampleValues
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import single_index, targets
from ds_migrate.syntax.source import SourceFile

_OBSERVED = tuple(
    f"torch.{home}.{name}"
    for home in ("quantization", "ao.quantization")
    for name in ("prepare_qat", "quantize_fx.prepare_qat_fx")
)
UPDATES = ("torch.optim.swa_utils.update_bn", "torchcontrib.optim.SWA.bn_update")


def buffer_notes(files: list[SourceFile], flow: Flow, values: RankValues, samples: SampleValues) -> Iterator[Note]:
    """Yield a note for each function that writes to buffers what differs by rank, as a codebook's averages.

    Queues are left: what is written to an index is one of many samples. Where a batch names the index, the samples are
    those of the data, and each rank keeps those of its share.
    """
    registered = set(_registered(flow))
    owners = {name for _, name in registered}
    for file in files:
        for call in file.nodes(cst.Call):
            if flow.is_call_of(call, file, _OBSERVED):
                message = "each rank computes the ranges of quantization from its share of the data"
                yield Note(Code.PLAIN_AGREEMENT, file, call, message, "give match_torch() broadcast_buffers=True")
        for line, name in _kept_samples(file, values, samples):
            message = f"each rank keeps its own {name}, of the samples of its share of the data"
            advice = "have each rank write those of all, which torch.distributed.all_gather_object() gives it"
            yield Note(Code.PLAIN_AGREEMENT, file, line, message, advice)
        for call in file.nodes(cst.Call):
            if flow.is_call_of(call, file, UPDATES) and call.args and values.differs(call.args[0].value, file):
                message = "each rank makes the statistics of BatchNorm of its share of the data"
                yield Note(Code.PLAIN_AGREEMENT, file, call, message, "give it a separate loader of all data")
        found: dict[int, tuple[cst.CSTNode, list[str]]] = {}
        for node, name, written in _writes(file):
            function = file.function(node)
            if name not in owners or function is None or (_variable(node, name, file, flow), name) not in registered:
                continue
            if any(values.differs(value, file) for value in written):
                names = found.setdefault(id(function), (node, []))[1]
                names.extend([name] if name not in names else [])
        for node, names in found.values():
            message = f"each rank makes its own {', '.join(names)} of its share of the data"
            advice = (
                "where training uses it, make it of mean_over_ranks() of what a batch gives, "
                "or give match_torch() broadcast_buffers=True"
            )
            yield Note(Code.PLAIN_AGREEMENT, file, node, message, advice)


def _registered(flow: Flow) -> Iterator[tuple[Variable | None, str]]:
    """Yield the buffers that classes register: their variables, and their names."""
    for file in flow.files.values():
        for call, name in registered_buffers(file):
            yield _variable(call, name, file, flow), name


def _variable(node: cst.CSTNode, name: str, file: SourceFile, flow: Flow) -> Variable | None:
    """Return the variable that an attribute of ``self`` is at a node; None outside of classes."""
    owner = file.class_around(node)
    return flow.classes.attribute(id(owner), name) if owner is not None else None


def _writes(file: SourceFile) -> Iterator[tuple[cst.CSTNode, str, list[cst.BaseExpression]]]:
    """Yield writes to attributes of ``self``, whole or at a number, with the names of these and what is written."""
    for call in file.nodes(cst.Call):
        if isinstance(call.func, cst.Attribute) and call.func.attr.value.endswith("_"):
            name = _own_attribute(call.func.value)
            if name is not None:
                yield call, name, [arg.value for arg in call.args]
    for node in file.nodes(cst.Assign, cst.AugAssign):
        for target in targets(node):
            name = _own_attribute(target.value if _is_numbered(target) else target)
            if name is not None:
                yield node, name, [node.value]


def _is_numbered(node: cst.CSTNode) -> TypeGuard[cst.Subscript]:
    """Return whether an expression is an item whose index is a number: ``params[2]``."""
    return isinstance(single_index(node), cst.Integer)


def _kept_samples(file: SourceFile, values: RankValues, samples: SampleValues) -> Iterator[tuple[cst.Assign, str]]:
    """Yield the lines that write what a batch gives to those items of an attribute, or a variable, that it names."""
    for node in file.nodes(cst.Assign):
        for target in targets(node):
            if not isinstance(target, cst.Subscript) or not _is_of_samples(node.value, file, values):
                continue
            name = _own_attribute(target.value) or _read_again(target.value, file)
            if name is not None and any(samples.holds(part.slice, file) for part in target.slice):
                yield node, name


def _is_of_samples(node: cst.CSTNode, file: SourceFile, values: RankValues) -> bool:
    """Return whether an expression differs by rank as the data does, and not by the time alone."""
    return values.differs(node, file) and values.of_samples.differs(node, file)


def _read_again(node: cst.BaseExpression, file: SourceFile) -> str | None:
    """Return the variable that an expression is, where the loops around read it that do not make it."""
    loops = [outer for outer in file.ancestors(node) if isinstance(outer, (cst.For, cst.While))]
    if not isinstance(node, cst.Name) or not loops:
        return None
    lines: list[cst.Assign] = file.nodes(cst.Assign, below=file.function(node) or file.module)
    makers = [line for line in lines for target in targets(line) if node.value in names_in(target)]
    is_made = not makers or any(outer is loops[-1] for line in makers for outer in file.ancestors(line))
    is_made |= any(node.value in names_in(loop.target) for loop in loops if isinstance(loop, cst.For))
    statement = file.statement(node)
    names: list[cst.Name] = file.nodes(cst.Name, below=loops[-1])
    is_read = any(one.value == node.value and file.statement(one) is not statement for one in names)
    return node.value if is_read and not is_made else None


def _own_attribute(node: cst.CSTNode) -> str | None:
    """Return the attribute of ``self`` that an expression is, or changes in place: of ``self.mean.data.mul_(0.9)``."""
    while True:
        if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value.endswith("_"):
            node = node.func.value
        elif isinstance(node, cst.Attribute) and node.attr.value == "data":
            node = node.value
        else:
            break
    is_own = isinstance(node, cst.Attribute) and isinstance(node.value, cst.Name) and node.value.value == "self"
    return node.attr.value if is_own and isinstance(node, cst.Attribute) else None
