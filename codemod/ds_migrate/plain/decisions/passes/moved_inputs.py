"""Inputs that DataParallel or DistributedDataParallel moved to the module's device, and nothing else does."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.dataflow.containers.iteration import loops_of
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.torch_names import DISTRIBUTED, WRAPPERS
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.recognition.batches.loaders import loaders_of
from ds_migrate.plain.recognition.facts import LoopFacts, Site
from ds_migrate.syntax.nodes import argument, dotted, last_name, set_values, walk, without_index
from ds_migrate.syntax.source import SourceFile

_MOVES = ("to", "cuda")
_DEPTH = 3


def moves_inputs(site: Site, facts: LoopFacts) -> bool:
    """Return whether a wrapper of a site's modules moved batches to their device, as they come from a loader."""
    if not any(True for _ in _moving_wrappers(site, facts)):
        return False
    for file, call in facts.flow.nodes(cst.Call):
        if not of_kind(facts.flow.values(call.func, file), Kind.MODULE, Kind.OBJECT) & site.of:
            continue
        if any(_is_unmoved(arg.value, file, facts.flow, _DEPTH) for arg in call.args):
            return True
    return False


def _moving_wrappers(site: Site, facts: LoopFacts) -> Iterator[cst.Call]:
    """Yield the wrappers of a site's modules that know a device: DistributedDataParallel by ``device_ids``."""
    for file, call in facts.flow.nodes(cst.Call):
        if not facts.flow.is_call_of(call, file, WRAPPERS) or not facts.flow.values(call, file) & site.of:
            continue
        devices = argument(call, 1, "device_ids")
        is_known = devices is not None and dotted(devices.value) != "None"
        if is_known or not facts.flow.is_call_of(call, file, DISTRIBUTED):
            yield call


def _is_unmoved(node: cst.BaseExpression, file: SourceFile, flow: Flow, depth: int) -> bool:
    """Return whether an expression is a batch of a loader, or made of it, and no call has moved it to a device."""
    if _moves(node, file, flow):
        return False
    names = [part for part in walk(node) if isinstance(part, cst.Name)]
    return any(_is_unmoved_name(name, file, flow, depth) for name in names)


def _is_unmoved_name(name: cst.Name, file: SourceFile, flow: Flow, depth: int) -> bool:
    loops = [loop for loop in loops_of(name, file) if loaders_of(loop.iter, file, flow)]
    set_here = [value for line in flow.scopes(file).nodes(name, cst.Assign) for value in _values(line, name.value)]
    values = [value for value in set_here if file.position(value) < file.position(name)]
    if any(_moves(value, file, flow) and not _asks_for_none(value, file) for value in values):
        return False
    return bool(loops) or (depth > 0 and any(_is_unmoved(value, file, flow, depth - 1) for value in values))


def _values(line: cst.Assign, name: str) -> Iterator[cst.BaseExpression]:
    """Yield what an assignment gives to a name, or to items of it."""
    for target, value in set_values(line):
        if dotted(without_index(target)) == name:
            yield line.value if value is None else value


def _moves(node: cst.CSTNode, file: SourceFile, flow: Flow) -> bool:
    """Return whether an expression moves tensors to a device, or makes them there, or calls a function that does."""
    for call in (part for part in walk(node) if isinstance(part, cst.Call)):
        if isinstance(call.func, cst.Attribute) and call.func.attr.value in _MOVES:
            return True
        if any("device" in (dotted(arg.value) or "") or dotted(arg.keyword) == "device" for arg in call.args):
            return True
        functions = of_kind(flow.values(call.func, file), Kind.FUNCTION, Kind.METHOD)
        inside = (call for value in functions for call in flow.file(value).nodes(cst.Call, below=flow.node(value)))
        if any(last_name(inner.func) in _MOVES for inner in inside):
            return True
    return False


def _asks_for_none(node: cst.CSTNode, file: SourceFile) -> bool:
    """Return whether a node runs where something is not None alone: a device of which DataParallel has none."""
    return any(
        isinstance(outer, cst.If) and any(isinstance(n, cst.Name) and n.value == "None" for n in walk(outer.test))
        for outer in file.ancestors(node)
    )
