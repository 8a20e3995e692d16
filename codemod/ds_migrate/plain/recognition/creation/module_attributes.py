"""Attributes of modules: an engine that is assigned to one becomes a part of the module, which is a part of it."""

from __future__ import annotations

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, Value
from ds_migrate.plain.recognition.facts import Site
from ds_migrate.syntax.nodes import dotted
from ds_migrate.syntax.source import SourceFile


def is_kept_in_module(site: Site, flow: Flow) -> bool:
    """Return whether an attribute of a module holds the optimizer, or its container."""
    if not isinstance(site.target, cst.Attribute):
        return False
    is_trained = dotted(site.target.value) in site.modules or bool(flow.values(site.target.value, site.file) & site.of)
    return is_trained or is_of_module(site.target, site.file, flow)


def is_of_module(node: cst.BaseExpression, file: SourceFile, flow: Flow) -> bool:
    """Return whether an expression is an attribute of a module."""
    return isinstance(node, cst.Attribute) and any(_is_module(value, flow) for value in flow.values(node.value, file))


def _is_module(value: Value, flow: Flow) -> bool:
    """Return whether a value is a module, also by a base of a library that is not known but has a forward pass."""
    found = flow.class_of(value.key) if value.kind is Kind.INSTANCE else None
    if found is None:
        return value.kind in (Kind.MODULE, Kind.PART)
    has_forward = flow.classes.method(value.key, "forward") is not None
    return flow.classes.is_module(found[1], found[0]) or (has_forward and bool(flow.classes.external_bases(value.key)))
