"""Forward passes that go through the engine: those of its one module, where gradients are made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.torch_names import NO_GRAD
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.decisions.plan import ProgramPlan
from ds_migrate.plain.recognition.facts import LoopFacts, Site
from ds_migrate.syntax.nodes import dotted, parameters, walk
from ds_migrate.syntax.source import SourceFile

Function = cst.FunctionDef | None
_GRAD_MODES = NO_GRAD - {"torch.set_grad_enabled"}


def decide_forwards(plan: ProgramPlan) -> ProgramPlan:
    """Choose the calls of the module that become calls of the engine; elsewhere the module is right too."""
    facts = plan.facts
    if not _has_one_module(plan):
        return plan
    (site,) = facts.sites
    forwards: list[tuple[SourceFile, cst.BaseExpression, str]] = []
    for file, function in facts.functions:
        name = next(n for s, n in plan.steps if s.file is file and s.function is function)
        calls = file.nodes(cst.Call, below=function if function is not None else file.module)
        if any(facts.flow.is_call_of(call, file, ("torch.autograd.grad",)) for call in calls):
            break
        if any(_may_be_none(s.owner, file, facts) for s, _ in plan.steps if s.file is file and s.function is function):
            continue  # there is no engine where the function evaluates
        own = [call for call in calls if file.function(call) is function]
        trained = [call for call in own if _trains(call, file, site, facts) and _shares_loop(call, file, plan)]
        forwards += [(file, call.func, name) for call in trained]
    return replace(plan, forwards=forwards)


def _has_one_module(plan: ProgramPlan) -> bool:
    """Return whether the engine's forward pass may take the place of the module's, whichever module is called."""
    facts = plan.facts
    if len(facts.sites) != 1 or len(facts.sites[0].modules) != 1 or not plan.is_managed:
        return False
    (site,) = facts.sites
    is_list = site.modules[0].startswith("*")
    names = (node.value for _, node in facts.flow.nodes(cst.Name))
    if is_list or site.tensors or plan.has_scaler or any("autocast" in name for name in names):
        return False  # an engine's forward switches autocast off, and the module is right under autocast
    # Where there may be several, which of them is called is unknown, and the module is right for each.
    if len(site.of) > 1 and facts.flow.callers.may_run_often(site.file, site.statement):
        return False
    return not any(facts.flow.callers.may_make_several(value) for value in site.of)


def _trains(call: cst.Call, file: SourceFile, site: Site, facts: LoopFacts) -> bool:
    """Return whether a call is a forward pass of the engine's module, where the engine is made and gradients are."""
    if dotted(call.func) is None:
        return False
    values = of_kind(facts.flow.values(call.func, file), Kind.MODULE, Kind.OBJECT)
    if values != site.of or _is_evaluation(call, file, facts.flow):
        return False
    is_beside = file is site.file and file.function(call) is site.function
    return not is_beside or file.position(call) >= file.position(site.statement)


def _may_be_none(node: cst.BaseExpression, file: SourceFile, facts: LoopFacts, depth: int = 4) -> bool:
    """Return whether an optimizer is None on some path, as ``optimizer=None`` of a function that evaluates too.

    An attribute is where it is set to a name that may be, not where a class sets it to None until it trains.
    """
    if isinstance(node, cst.Attribute):
        return any(
            isinstance(value, cst.Name) and value.value != "None" and _may_be_none(value, other, facts, depth)
            for other, value in _assigned(node, file, facts.flow)
        )
    if not isinstance(node, cst.Name) or node.value == "None":
        return any(isinstance(n, cst.Name) and n.value == "None" for n in walk(node))
    scope = facts.flow.scopes(file).owner(node.value, node)
    if any(dotted(value) == "None" for value in file.values_of({node.value}, scope)):
        return True
    if not isinstance(scope, cst.FunctionDef) or depth == 0:
        return False
    parameter = next((p for p in parameters(scope) if p.name.value == node.value), None)
    if parameter is None:
        return False
    calls = facts.flow.callers.of(scope)
    given = [(caller, facts.flow.given(call, scope, node.value, caller)) for caller, call in calls]
    is_left_out = not calls or any(arg is None or arg.star for _, arg in given)
    return (is_left_out and dotted(parameter.default) == "None") or any(
        arg is not None and _may_be_none(arg.value, caller, facts, depth - 1) for caller, arg in given
    )


def _assigned(node: cst.Attribute, file: SourceFile, flow: Flow) -> Iterator[tuple[SourceFile, cst.BaseExpression]]:
    """Yield what the program assigns to an attribute."""
    variable = flow.variable(node, file)
    for other, target in flow.attributes(node.attr.value):
        line = other.statement(target)
        lines = other.nodes(cst.Assign, below=line) if isinstance(other.parent(target), cst.AssignTarget) else ()
        if variable is not None and flow.variable(target, other) == variable:
            yield from ((other, assign.value) for assign in lines)


def _shares_loop(call: cst.Call, file: SourceFile, plan: ProgramPlan) -> bool:
    """Return whether a backward pass is in the innermost loop around a call, or neither is in one."""
    kinds = (cst.For, cst.While, cst.FunctionDef)
    loop = next((a for a in file.ancestors(call) if isinstance(a, kinds)), None)
    near = [backward for backward in plan.fed if backward.file is file and backward.function is file.function(call)]
    around = [[a for a in file.ancestors(backward.node) if isinstance(a, kinds)] for backward in near]
    return any(any(a is loop for a in loops) if loop is not None else not loops for loops in around)


def _is_evaluation(call: cst.Call, file: SourceFile, flow: Flow) -> bool:
    for outer in file.ancestors(call):
        if isinstance(outer, cst.FunctionDef):
            return any(_is_grad_mode(d.decorator, file, flow) for d in outer.decorators)
        if isinstance(outer, cst.With) and any(_is_grad_mode(i.item, file, flow) for i in outer.items):
            return True
    return False


def _is_grad_mode(node: cst.BaseExpression, file: SourceFile, flow: Flow) -> bool:
    values = flow.values(node.func if isinstance(node, cst.Call) else node, file)
    return any(v.kind is Kind.EXTERNAL and v.name in _GRAD_MODES for v in values)
