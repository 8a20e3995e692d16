"""Engines that a program frees with their optimizers, as at the end of each fold."""

from __future__ import annotations

from collections.abc import Callable

import libcst as cst

from ds_migrate.plain.decisions.engines.optional_engines import may_be_none
from ds_migrate.plain.decisions.plan import ProgramPlan
from ds_migrate.plain.edits.runtime_names import Converted
from ds_migrate.plain.recognition.facts import Site
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import dotted
from ds_migrate.syntax.source import SourceFile

_REST = "_"  # name of what else deepspeed.initialize returns


def free_engines(plan: ProgramPlan, converted: Converted) -> None:
    """Delete an engine where the program deletes its optimizer, with the rest of what ``deepspeed.initialize`` returns.

    Both refer to the optimizer and the model, which would stay until another engine takes their place.
    """
    freed: dict[cst.Del, dict[tuple[str, str], Site]] = {}  # by the names of optimizers and engines
    for engine in plan.engines:
        site = engine.site
        for node in site.file.nodes(cst.Del) if not site.clause else []:
            if site.optimizer_name in _deleted(node) and _is_beside(node, site):
                freed.setdefault(node, {})[site.optimizer_name, engine.name] = site
    for node, sites in freed.items():
        if len({optimizer for optimizer, _ in sites}) < len(sites):
            continue  # one name for optimizers of several engines: unknown which of them are there
        file = next(iter(sites.values())).file
        names = [name for _, name in sites]
        is_once = not any(other is not node and file.function(other) is file.function(node) for other in freed)
        has_rest = is_once and not any("." in name or may_be_none(site) for (_, name), site in sites.items())
        file.change(node.target, _with([*names, *([_REST] if has_rest else [])]))
        message = f"del takes {', '.join(names)} too, which would keep the model and the optimizer"
        converted(Code.PLAIN_ENGINE, file, node, message)


def _is_beside(node: cst.Del, site: Site) -> bool:
    """Return whether names in a ``del`` statement are those where an optimizer is made."""
    file = site.file
    if site.optimizer_name.startswith("self."):
        return file.class_around(node) is file.class_around(site.statement)
    return file.function(node) is site.function


def is_deleted(node: cst.CSTNode, file: SourceFile) -> bool:
    """Return whether ``del`` takes a name."""
    above = [type(one) for one, _ in zip(file.ancestors(node), range(3), strict=False)]
    return above[:1] == [cst.Del] or above == [cst.Element, cst.Tuple, cst.Del]


def _deleted(node: cst.Del) -> list[str | None]:
    target = node.target
    return [dotted(one.value) for one in target.elements] if isinstance(target, cst.Tuple) else [dotted(target)]


def _with(names: list[str]) -> Callable[[cst.CSTNode], cst.CSTNode]:
    """Return the change that adds names to what ``del`` takes."""
    more = [cst.Element(cst.parse_expression(name)) for name in names]

    def change(updated: cst.CSTNode) -> cst.CSTNode:
        if isinstance(updated, cst.Tuple):
            elements = [element.with_changes(comma=cst.MaybeSentinel.DEFAULT) for element in updated.elements]
            return updated.with_changes(elements=[*elements, *more])
        assert isinstance(updated, cst.BaseExpression)
        return cst.Tuple([cst.Element(updated), *more], lpar=[], rpar=[])

    return change
