"""Optimizers that reach a step with just the modules that are clipped before it, whatever call they come from."""

from __future__ import annotations

import libcst as cst

from ds_migrate.plain.decisions.plan import ProgramPlan
from ds_migrate.plain.recognition.facts import Clip, Step
from ds_migrate.plain.recognition.steps.operations import parameter_owners
from ds_migrate.syntax.nodes import argument, dotted, parameters, targets, walk
from ds_migrate.syntax.source import SourceFile

_DEPTH = 3  # functions that pass both on
_MOVES = ("to", "cuda")
_Parameter = tuple[cst.FunctionDef, str]


def are_given_together(clip: Clip, step: Step, plan: ProgramPlan) -> bool:
    """Return whether each call of a function gives it an optimizer and just the modules of that, which it clips.

    A method may clip and step what each call of ``__init__()`` gives to its object.
    """
    given = argument(clip.call, 0, "parameters")
    module = _module(given.value, clip.file, plan) if given is not None else None
    clipped = _parameter(module, clip.function, clip.file, plan)
    stepped = _parameter(step.owner, clip.function, clip.file, plan)
    if clipped is None or stepped is None or clipped[0] is not stepped[0]:
        return False
    return _are_given(clipped[0], clipped[1], stepped[1], plan, _DEPTH)


def _parameter(
    node: cst.CSTNode | None, function: cst.FunctionDef | None, file: SourceFile, plan: ProgramPlan
) -> _Parameter | None:
    """Return the function with the parameter that an expression is, or that an attribute of ``self`` keeps."""
    if isinstance(node, cst.Name):
        return (function, node.value) if function is not None else None
    if not isinstance(node, cst.Attribute) or dotted(node.value) != "self":
        return None
    stores = _stores(node, file, plan)
    if stores is None or len(stores) != 1:
        return None
    ((at, store),) = stores
    maker, kept = at.function(store), store.value
    if isinstance(kept, cst.Call) and isinstance(kept.func, cst.Attribute) and kept.func.attr.value in _MOVES:
        kept = kept.func.value
    if maker is None or maker.name.value != "__init__" or not isinstance(kept, cst.Name):
        return None
    return maker, kept.value


def _stores(
    node: cst.Attribute, file: SourceFile, plan: ProgramPlan
) -> list[tuple[SourceFile, cst.Assign | cst.AnnAssign]] | None:
    """Return what assigns an attribute of ``self`` in its class and relatives; None where other code does, too."""
    flow, own = plan.facts.flow, file.class_around(node)
    found = []
    for at, line in flow.nodes(cst.Assign, cst.AnnAssign, cst.AugAssign):
        for target in targets(line):
            if not isinstance(target, cst.Attribute) or target.attr.value != node.attr.value:
                continue
            around = at.class_around(line)
            if dotted(target.value) != "self" or own is None or isinstance(line, cst.AugAssign):
                return None
            if around is not None and flow.classes.root(id(around)) == flow.classes.root(id(own)):
                found.append((at, line))
    return found


def _module(node: cst.BaseExpression, file: SourceFile, plan: ProgramPlan) -> cst.BaseExpression | None:
    """Return the one module whose parameters an expression is, or what holds the parameters themselves."""
    if isinstance(node, cst.Name):
        return node
    owners = [n for n in walk(node) if any(parameter_owners(n, file, plan.facts.flow))]
    modules = [n.func.value for n in owners if isinstance(n, cst.Call) and isinstance(n.func, cst.Attribute)]
    return modules[0] if len(modules) == 1 else None


def _are_given(function: cst.FunctionDef, clipped: str, optimizer: str, plan: ProgramPlan, depth: int) -> bool:
    """Return whether each call of a function gives two of its parameters an optimizer and the modules of that."""
    flow, calls = plan.facts.flow, plan.facts.flow.callers.of(function)
    defaults = {p.name.value: dotted(p.default) for p in parameters(function)}
    for file, call in calls if {clipped, optimizer} <= defaults.keys() else ():
        stepped, owner = (flow.given(call, function, name, file) for name in (optimizer, clipped))
        if owner is None and defaults[clipped] == "None":
            continue  # it cannot be clipped
        if stepped is None or owner is None or stepped.star or owner.star:
            return False
        held = flow.values(stepped.value, file)
        of_owner = flow.values(owner.value, file)
        modules = of_owner or frozenset(v for node in walk(owner.value) for v in parameter_owners(node, file, flow))
        if any(held and held <= site.optimizers and modules == site.of for site in plan.facts.sites):
            continue
        around, module = file.function(call), _module(owner.value, file, plan)
        if around is None or not isinstance(module, cst.Name) or not isinstance(stepped.value, cst.Name) or not depth:
            return False
        if not _are_given(around, module.value, stepped.value.value, plan, depth - 1):
            return False
    return bool(calls) and {clipped, optimizer} <= defaults.keys()
