"""Engines that a function can reach which does not step them itself."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.dataflow.scopes import is_label
from ds_migrate.plain.dataflow.values import Kind, Values, Variable, of_kind
from ds_migrate.plain.decisions.naming.engine_names import UntracedError
from ds_migrate.plain.decisions.naming.free_names import last_part
from ds_migrate.plain.decisions.plan import ProgramPlan
from ds_migrate.plain.recognition.facts import Site
from ds_migrate.syntax.nodes import dotted, parameters, targets
from ds_migrate.syntax.source import SourceFile


class VisibleEngines:
    """The engines that functions of a program can reach."""

    def __init__(self, plan: ProgramPlan) -> None:
        self._names = plan.names
        self._flow = plan.facts.flow

    def find(self, function: cst.FunctionDef | None, file: SourceFile, wanted: Values) -> str | None:
        """Return an engine that a function can reach which does not step it itself."""
        nodes = file.nodes(cst.Name, cst.Attribute, below=function if function is not None else file.module)
        nodes = [node for node in nodes if file.function(node) is function and not is_label(node, file)]
        for node in nodes:
            owner = node.value if isinstance(node, cst.Attribute) else node
            held = of_kind(self._flow.values(node, file), Kind.OPTIMIZER)
            if held and held <= wanted and not self._may_be_none(owner, file):
                try:
                    return self._names.at(node, file)
                except UntracedError:
                    continue
        known = {
            variable: name for variable, name in self._names.at_variable.items()
            if variable not in self._names.rebound and self._holds(variable, wanted)
        }  # fmt: skip
        kept = {variable: last_part(name) for variable, name in known.items() if variable[1][:1] == "."}
        kept |= {variable: last_part(self._names.at_site[site]) for variable, site in self._containers(wanted)}
        if function is not None and function.params.params:
            first = function.params.params[0].name.value
            for value in sorted(self._flow.held((id(function), first)), key=lambda value: value.name):
                for variable, name in kept.items():
                    if variable == self._flow.classes.attribute(value.key, variable[1][1:]):
                        return f"{first}.{name}"
        for node in nodes:  # of an object that keeps it
            instances = of_kind(self._flow.values(node, file), Kind.INSTANCE)
            for value in sorted(instances, key=lambda value: value.name):
                for variable, name in kept.items():
                    is_kept = variable == self._flow.classes.attribute(value.key, variable[1][1:])
                    if is_kept and dotted(node) is not None and not self._may_be_none(node, file):
                        return f"{dotted(node)}.{name}"
        return next((name for variable, name in known.items() if variable[0] == id(file.module)), None)

    def _containers(self, wanted: Values) -> Iterator[tuple[Variable, Site]]:
        """Yield the attributes that are containers of optimizers, with the sites of wanted ones in them."""
        for site in self._names.at_site:
            variable = self._flow.variable(site.target, site.file)
            has_name = bool(site.item) and not site.clause and site.variable not in self._names.in_modules
            if has_name and isinstance(site.target, cst.Attribute) and variable and site.optimizers <= wanted:
                yield variable, site

    def _holds(self, variable: Variable, wanted: Values) -> bool:
        held = of_kind(self._flow.held(variable), Kind.OPTIMIZER)
        return held <= wanted and (bool(held) or len({site.variable for site in self._names.at_site}) == 1)

    def _may_be_none(self, node: cst.BaseExpression, file: SourceFile) -> bool:
        """Return whether a name, or what an attribute is set to, may be None: an argument that calls may leave out."""
        if dotted(node) == "None":
            return True
        if isinstance(node, cst.Name):
            scope = self._flow.scopes(file).owner(node.value, node)
            params = parameters(scope) if isinstance(scope, cst.FunctionDef) else []
            return any(p.name.value == node.value and dotted(p.default) == "None" for p in params) or any(
                dotted(value) == "None" for value in file.values_of({node.value}, scope)
            )
        variable = self._flow.variable(node, file)
        return isinstance(node, cst.Attribute) and any(
            isinstance(target, cst.Attribute)
            and target.attr.value == node.attr.value
            and self._flow.variable(target, other) == variable
            and assign.value is not None
            and self._may_be_none(assign.value, other)
            for other, assign in self._flow.nodes(cst.Assign, cst.AnnAssign)
            for target in targets(assign)
        )
