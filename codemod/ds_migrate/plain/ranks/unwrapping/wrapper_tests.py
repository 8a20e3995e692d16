"""Conditions that ask for a module's wrapper: ``hasattr(model, "module")``, ``isinstance(model, DataParallel)``."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.syntax.nodes import dotted, last_statement, parameters, walk
from ds_migrate.syntax.source import SourceFile

_LEAVES = (cst.Return, cst.Raise, cst.Continue, cst.Break)


def is_found_wrapped(node: cst.Attribute, file: SourceFile) -> bool:
    """Return whether a branch reads ``model.module`` as it has found a wrapper, of which none is left."""
    return any(
        is_met
        and isinstance(test, cst.Call)
        and dotted(test.func) == "isinstance"
        and _wants_wrapper(test, node.value, file)
        for test, is_met in _tests(node, file)
    )


def is_found_of_class(node: cst.Attribute, file: SourceFile) -> bool:
    """Return whether a branch reads ``x.module`` as it has found ``x`` to be of a class: a wrapper, or one that has it.

    That ``x`` is a ``torch.nn.Module`` says nothing: a wrapper is one too.
    """
    return any(
        is_met
        and isinstance(test, cst.Call)
        and dotted(test.func) == "isinstance"
        and len(test.args) == 2
        and test.args[0].value.deep_equals(node.value)
        and "torch.nn.Module" not in _classes(test.args[1].value, file)
        for test, is_met in _tests(node, file)
    )


def is_found_bare(node: cst.BaseExpression, file: SourceFile, flow: Flow) -> bool:
    """Return whether a node is on the path on which it has been found to be in no wrapper."""
    for test, is_met in _tests(node, file):
        if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
            test, is_met = test.expression, not is_met
        if not is_met and (_wants_wrapper(test, node, file) or _calls_for_wrapper(test, node, file, flow)):
            return True
    return False


def _calls_for_wrapper(test: cst.BaseExpression, module: cst.BaseExpression, file: SourceFile, flow: Flow) -> bool:
    """Return whether a test is a call of a function that returns whether its one argument is in a wrapper."""
    if not isinstance(test, cst.Call) or len(test.args) != 1 or not test.args[0].value.deep_equals(module):
        return False
    functions = of_kind(flow.values(test.func, file), Kind.FUNCTION)
    return bool(functions) and all(_returns_test(flow.node(value), flow.file(value)) for value in functions)


def _returns_test(function: cst.CSTNode, file: SourceFile) -> bool:
    returned = file.returned(function)
    if not isinstance(function, cst.FunctionDef) or len(returned) != 1 or len(parameters(function)) != 1:
        return False
    (value,) = returned
    return value is not None and _wants_wrapper(value, parameters(function)[0].name, file)


def _wants_wrapper(test: cst.BaseExpression, module: cst.BaseExpression, file: SourceFile) -> bool:
    if isinstance(test, cst.Comparison) and isinstance(test.left, cst.Call) and len(test.comparisons) == 1:
        (target,) = test.comparisons
        is_type = dotted(test.left.func) == "type" and test.left.args[0].value.deep_equals(module)
        is_same = isinstance(target.operator, (cst.In, cst.Is, cst.Equal))
        return is_type and is_same and any("Parallel" in name for name in _classes(target.comparator, file))
    if not isinstance(test, cst.Call) or len(test.args) != 2 or not test.args[0].value.deep_equals(module):
        return False
    wanted = test.args[1].value
    if dotted(test.func) == "hasattr":
        return isinstance(wanted, cst.SimpleString) and wanted.evaluated_value == "module"
    return dotted(test.func) == "isinstance" and any("Parallel" in name for name in _classes(wanted, file))


def _classes(wanted: cst.BaseExpression, file: SourceFile) -> set[str]:
    return {file.names.qualified(node) or "" for node in walk(wanted) if isinstance(node, (cst.Name, cst.Attribute))}


def _tests(node: cst.CSTNode, file: SourceFile) -> Iterator[tuple[cst.BaseExpression, bool]]:
    """Yield the conditions that lead to a node, and whether they are met there."""
    inner = node
    for outer in file.ancestors(node):
        if isinstance(outer, (cst.If, cst.IfExp)) and inner is not outer.test:
            yield outer.test, inner is outer.body
        if isinstance(outer, cst.IndentedBlock):
            for each in outer.body:
                if each is inner:
                    break
                if isinstance(each, cst.If) and each.orelse is None and isinstance(last_statement(each.body), _LEAVES):
                    yield each.test, False
        if isinstance(outer, (cst.FunctionDef, cst.Lambda)):
            return
        inner = outer
