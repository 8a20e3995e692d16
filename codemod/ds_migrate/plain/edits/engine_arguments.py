"""Functions and objects that are given engines where they were given optimizers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import libcst as cst

from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.decisions.naming.engine_names import Passed
from ds_migrate.plain.decisions.plan import Note, ProgramPlan
from ds_migrate.plain.edits.freed_engines import is_deleted
from ds_migrate.plain.edits.runtime_names import Converted
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import dotted, parameters
from ds_migrate.syntax.source import SourceFile


def pass_engines(plan: ProgramPlan, converted: Converted) -> None:
    """Give engines to the functions that step an optimizer, in its place, and let objects keep them beside it."""
    names = plan.names
    for file, arg, name in names.arguments.values():
        if arg.keyword is not None:
            file.replace(arg.keyword, names.keywords[id(arg)])
        file.replace(arg.value, name)
    for passed in names.passed.values():
        for param in parameters(passed.function):
            if param.name.value == passed.parameter:
                passed.file.change(param, _renamed(passed.name))
                _annotate(param, passed.file)
        converted(
            Code.PLAIN_ENGINE, passed.file, passed.function,
            f"{passed.function.name.value}() takes the engine in the place of {passed.parameter}",
        )  # fmt: skip
        _rename_uses(passed, plan)
    for kept in names.kept.values():
        engine = names.at(kept.value, kept.file)
        kept.file.after(kept.statement, f"{kept.attribute} = {engine}")


def calls_left(plan: ProgramPlan) -> Iterator[Note]:
    """Yield the calls in idle functions that still give an optimizer to a function which takes an engine now."""
    flow, names = plan.facts.flow, plan.names
    for passed in names.passed.values():
        for file, call in flow.callers.of(passed.function):
            arg = flow.given(call, passed.function, passed.parameter, file)
            if arg is None or id(arg) in names.arguments or dotted(arg.value) == "None":
                continue
            if not of_kind(flow.values(arg.value, file), Kind.OPTIMIZER):  # one that is made in these files has a note
                called = passed.function.name.value
                yield Note(
                    Code.PLAIN_ENGINE, file, call,
                    f"{called}() takes an engine now, and this call, which nothing in these files reaches, gives it an "
                    "optimizer",
                    f"make an engine with deepspeed.initialize() there, and give {called}() that",
                )  # fmt: skip


def _rename_uses(passed: Passed, plan: ProgramPlan) -> None:
    """Read the optimizer from the engine where the function uses it otherwise."""
    file, name = passed.file, passed.name
    handled = {id(s.owner) for s, _ in plan.steps if not s.is_phase} | {
        id(arg.value) for _, arg, _ in plan.names.arguments.values()
    }
    handled |= {id(p.owner) for p in plan.removed if hasattr(p, "owner")}
    for node in file.nodes(cst.Name, below=passed.function.body):
        if node.value != passed.parameter or id(node) in handled:
            continue
        if plan.facts.flow.scopes(file).owner(passed.parameter, node) is not passed.function:
            continue
        parent = file.parent(node)
        if isinstance(parent, cst.Attribute) and parent.attr is node:
            continue
        if isinstance(parent, cst.Arg) and parent.keyword is node:
            continue
        is_test = isinstance(parent, (cst.Comparison, cst.If, cst.UnaryOperation, cst.BooleanOperation, cst.IfExp))
        if is_test or is_deleted(node, file):
            file.replace(node, name)
        elif passed.is_optional and isinstance(parent, (cst.Assign, cst.AnnAssign, cst.Arg, cst.Return)):
            file.replace(node, f"{name}.optimizer if {name} is not None else None")
        else:
            file.replace(node, f"{name}.optimizer")


def _annotate(param: cst.Param, file: SourceFile) -> None:
    """Let the annotation of a parameter that takes an engine say so, where it names a class of optimizers."""
    given = param.annotation.annotation if param.annotation is not None else None
    named = file.nodes(cst.Name, cst.Attribute, below=given) if given is not None else []
    for node in named:
        name = file.names.qualified(node) or ""
        is_module = name == "torch.optim" and not isinstance(file.parent(node), cst.Attribute)  # optimizer: optim
        if is_module or name.startswith("torch.optim."):
            file.replace(node, f"{file.imports.module('deepspeed')}.DeepSpeedEngine")


def _renamed(name: str) -> Callable[[cst.CSTNode], cst.CSTNode]:
    return lambda updated: updated.with_changes(name=cst.Name(name))
