"""Expressions of one place, written so that they mean the same at another."""

from __future__ import annotations

import libcst as cst

from ds_migrate.plain.dataflow.branches.blocks import always_runs_before
from ds_migrate.plain.dataflow.branches.set_names import is_always_set
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.scopes import is_label
from ds_migrate.syntax.nodes import dotted, last_name, parameter, targets, walk
from ds_migrate.syntax.one_line import expression_text
from ds_migrate.syntax.source import SourceFile

_CALLS = frozenset({"int", "float", "len", "min", "max", "get_world_size", "device_count"})


def at_statement(
    node: cst.BaseExpression,
    file: SourceFile,
    statement: cst.BaseStatement,
    there: SourceFile,
    flow: Flow,
    depth: int = 4,
) -> str | None:
    """Return an expression as it can be written after a statement; None where a name in it is not known there.

    A parameter is followed to the one call that gives it.
    """
    for part in walk(node):
        if isinstance(part, cst.Call) and last_name(part.func) not in _CALLS:
            return None
        if isinstance(part, (cst.Lambda, cst.Await, cst.NamedExpr, cst.BaseComp)):
            return None
    names = [
        n for n in walk(node)
        if isinstance(n, cst.Name) and not is_label(n, file) and n.value not in _CALLS
    ]  # fmt: skip
    put: dict[int, str] = {}
    for name in names:
        if not _is_known(name, file, statement, there, flow):
            text = _followed(name, file, statement, there, flow, depth - 1) if depth else None
            if text is None:
                return None
            put[id(name)] = text
    if not put:
        return expression_text(node)
    replaced = node.visit(_Put({id(name): put[id(name)] for name in names if id(name) in put}))
    assert isinstance(replaced, cst.BaseExpression)
    return expression_text(replaced)


class _Put(cst.CSTTransformer):
    """Puts expressions in the place of names."""

    def __init__(self, texts: dict[int, str]) -> None:
        super().__init__()
        self._texts = texts

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:  # noqa: N802
        text = self._texts.get(id(original_node))
        if text is None:
            return updated_node
        new = cst.parse_expression(text)
        is_simple = isinstance(
            new, (cst.Name, cst.Attribute, cst.Subscript, cst.BaseNumber, cst.Call, cst.SimpleString)
        )
        return new if is_simple else new.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


def _followed(
    node: cst.Name, file: SourceFile, statement: cst.BaseStatement, there: SourceFile, flow: Flow, depth: int
) -> str | None:
    """Return what a name that is not known at the statement stands for: an argument, or what is assigned to it."""
    function = flow.scopes(file).function_of_parameter(node)
    param = parameter(function, node.value) if function is not None else None
    if function is not None and param is not None:
        texts = set()
        for caller, call in flow.callers.of(function):
            arg = flow.given(call, function, node.value, caller)
            value = arg.value if arg is not None else param.default
            if value is None or (arg is not None and arg.star):
                return None
            texts.add(at_statement(value, caller if arg else file, statement, there, flow, depth))
        return texts.pop() if len(texts) == 1 else None
    assigned = [
        n.value for n in flow.scopes(file).nodes(node, cst.Assign, cst.AnnAssign, cst.AugAssign)
        if any(isinstance(t, cst.Name) and t.value == node.value for t in targets(n))
    ]  # fmt: skip
    if len(assigned) == 1 and assigned[0] is not None:
        return at_statement(assigned[0], file, statement, there, flow, depth)
    return None


def _is_known(name: cst.Name, file: SourceFile, statement: cst.BaseStatement, there: SourceFile, flow: Flow) -> bool:
    """Return whether a name means the same after the statement, and has its value by then."""
    if there is not file:
        return False
    scope = flow.scopes(file).owner(name.value, name)
    at_site = flow.scopes(there).owner(name.value, statement)
    if scope is not at_site:
        return _same_receiver(name, file, statement, there, flow)
    if isinstance(scope, cst.FunctionDef) and parameter(scope, name.value) is not None:
        return True
    assigned = [
        n for n in flow.scopes(file).nodes(name, cst.Assign, cst.AnnAssign, cst.AugAssign, cst.For, cst.NamedExpr)
        if any(isinstance(t, cst.Name) and t.value == name.value for target in _targets(n) for t in walk(target))
    ]  # fmt: skip
    if any(isinstance(n, (cst.AugAssign, cst.For)) for n in assigned):
        return False
    if file.names.bindings.get(name.value) is not None:
        return True
    function = file.function(statement)
    if scope is file.module and function is not None:
        # A global, set before the function that makes the engine is called: in the block of __main__ not by importers.
        is_read = any(n.value == name.value for n in file.nodes(cst.Name, below=function))
        return bool(assigned) and (is_read or not all(_is_of_script(n, file) for n in assigned))
    limit = file.position(statement)
    if not assigned or any(file.position(n) > limit for n in assigned):
        return False
    # Where a branch that may not run reads the name, a line outside must set it.
    is_on_the_way = file.position(name) >= limit or always_runs_before(name, statement, file)
    return is_on_the_way or is_always_set(name.value, statement, file)


def _is_of_script(node: cst.CSTNode, file: SourceFile) -> bool:
    """Return whether a line is run by a script alone, and not by those that import the file."""
    conditions = (outer.test for outer in file.ancestors(node) if isinstance(outer, cst.If))
    return any(isinstance(test, cst.Comparison) and dotted(test.left) == "__name__" for test in conditions)


def _targets(node: cst.CSTNode) -> list[cst.CSTNode]:
    if isinstance(node, (cst.For, cst.NamedExpr)):
        return [node.target]
    return list(targets(node))


def _same_receiver(
    name: cst.Name, file: SourceFile, statement: cst.BaseStatement, there: SourceFile, flow: Flow
) -> bool:
    """Return whether the name is ``self`` in two methods of one class, and the attribute is set where the engine is."""
    function, other = file.function(name), there.function(statement)
    parent = file.parent(name)
    if function is None or other is None or not isinstance(parent, cst.Attribute):
        return False
    first = [p.name.value for p in other.params.params[:1]]
    if first != [name.value] or not flow.values(name, file) & flow.held((id(other), name.value)):
        return False
    text = dotted(parent)
    return any(
        there.position(n) < there.position(statement)
        for n in there.nodes(cst.Attribute, below=other)
        if dotted(n) == text
    )
