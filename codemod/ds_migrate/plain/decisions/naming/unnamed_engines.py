"""Variables of optimizers that no name of an engine can stand beside: of modules, or of one optimizer after another.

``optimizer = optimizers[i]`` holds another one than that for which the last engine was made.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, Value
from ds_migrate.plain.recognition.facts import Site
from ds_migrate.syntax.nodes import dotted, set_values
from ds_migrate.syntax.source import SourceFile


def may_hold_another(site: Site, flow: Flow) -> bool:
    """Return whether the variable of a site may hold an optimizer that was made there before the last one."""
    is_made_often = any(flow.callers.may_make_several(value) for value in site.optimizers)
    return is_made_often and any(not _makes(source, file, site, flow) for file, source in _sources(site, flow))


def _sources(site: Site, flow: Flow) -> Iterator[tuple[SourceFile, cst.BaseExpression]]:
    """Yield the expressions that give the variable of a site an optimizer, or may have one among their items."""
    for file in [site.file] if isinstance(site.target, cst.Name) else flow.files.values():
        for line in file.nodes(cst.Assign, cst.AnnAssign):
            for target, value in set_values(line):
                is_optimizer = value is None or bool(flow.values(value, file) & site.optimizers)
                if is_optimizer and flow.variable(target, file) == site.variable:
                    yield file, line.value
        for loop in file.nodes(cst.For):
            elements = loop.target.elements if isinstance(loop.target, (cst.Tuple, cst.List)) else [loop.target]
            targets = [element.value if isinstance(element, cst.Element) else element for element in elements]
            if any(flow.variable(target, file) == site.variable for target in targets):
                yield file, loop.iter


def _makes(source: cst.BaseExpression, file: SourceFile, site: Site, flow: Flow) -> bool:
    """Return whether an expression makes an optimizer of a site, or calls the function that does."""
    functions = {id(owner.function(maker)) for owner, maker in site.makers}
    return any(
        any(call is maker for _, maker in site.makers)
        or any(callee.key in functions for callee in flow.values(call.func, file))
        for call in file.nodes(cst.Call, below=source)
    )


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
