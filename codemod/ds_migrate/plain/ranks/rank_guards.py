"""Conditions on the rank: how they are written around statements, and where a program has its own."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache

import libcst as cst

from ds_migrate.plain.edits.runtime_names import RuntimeNames
from ds_migrate.syntax.nodes import docstring, dotted, last_statement, walk
from ds_migrate.syntax.source import SourceFile

GUARD = "rank 0"
NOWHERE = "nowhere"  # marks a call that opens a file on rank 0, and none on the others
_HOISTED = "all ranks"  # marks the arguments of a guarded call that all ranks compute
_WORDS = ("rank", "master", "main_process", "is_primary")


def is_guarded(node: cst.CSTNode, file: SourceFile) -> bool:
    """Return whether a condition around a node, or a function that is left before it, asks for a rank already."""
    is_hoisted = False
    inner = node
    for outer in (node, *file.ancestors(node)):
        is_hoisted |= file.edits.is_done(outer, _HOISTED)
        if file.edits.is_done(outer, GUARD) and not (
            is_hoisted and isinstance(outer, (cst.SimpleStatementLine, cst.Expr))
        ):
            return True
        if type(outer) is cst.If and outer is not node and asks_for_rank(outer.test):  # as in dotted()
            return True
        if (type(outer) is cst.BooleanOperation or type(outer) is cst.IfExp) and _asks_before(outer, inner):
            return True
        if type(outer) is cst.FunctionDef and (_is_of_one_rank(outer) or _is_left_before(outer, node, file)):
            return True
        inner = outer
    return False


def _asks_before(outer: cst.BooleanOperation | cst.IfExp, part: cst.CSTNode) -> bool:
    """Return whether an expression asks for a rank before it evaluates a part: ``rank == 0 and save()``."""
    if isinstance(outer, cst.IfExp):
        return part is not outer.test and asks_for_rank(outer.test)
    return part is outer.right and asks_for_rank(outer.left)


@lru_cache(maxsize=4096)  # of each node around which others are asked about
def asks_for_rank(test: cst.BaseExpression) -> bool:
    """Return whether a condition asks for a rank, as far as its words show."""
    words = {n.value.lower() for n in walk(test) if isinstance(n, cst.Name)}
    return any(word == "gpu" or any(part in word for part in _WORDS) for word in words)


def _is_of_one_rank(function: cst.FunctionDef) -> bool:
    """Return whether a decorator lets one rank alone run a function: ``@master_only``, ``@rank_zero_only``."""
    names = [dotted(d.decorator) or dotted(getattr(d.decorator, "func", None)) or "" for d in function.decorators]
    return any(part in name.lower() for name in names for part in _WORDS)


def _is_left_before(function: cst.FunctionDef, node: cst.CSTNode, file: SourceFile) -> bool:
    """Return whether ranks return from a function, by a condition on the rank, before they come to a node."""
    return any(file.position(statement) < file.position(node) for statement in _ways_out(function))


@lru_cache(maxsize=4096)  # as above
def _ways_out(function: cst.FunctionDef) -> Sequence[cst.If]:
    """Return the conditions on the rank under which a function is left."""
    return [
        statement for statement in function.body.body
        if isinstance(statement, cst.If) and statement.orelse is None and asks_for_rank(statement.test)
        and isinstance(last_statement(statement.body), cst.Return)
    ]  # fmt: skip


def guard_line(file: SourceFile, call: cst.Call, runtime: RuntimeNames) -> bool:
    """Put the line that a call is under the condition that holds on rank 0; return whether there is such a line."""
    expression = file.parent(call)
    line = file.parent(expression) if isinstance(expression, cst.Expr) else None
    if not isinstance(line, cst.SimpleStatementLine):
        return False
    if file.edits.once(line, GUARD):
        guard_run(file, [line], runtime)
    return True


def guard_run(file: SourceFile, run: Sequence[cst.BaseStatement], runtime: RuntimeNames) -> None:
    """Put neighbouring statements under one condition that holds on rank 0."""
    test = cst.parse_expression(runtime.main_rank(file))

    def guard(updated: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(updated, (cst.SimpleStatementLine, cst.BaseCompoundStatement))
        body = cst.IndentedBlock([updated.with_changes(leading_lines=[])])
        return cst.If(test, body, leading_lines=updated.leading_lines)

    for statement in run:
        file.change(statement, guard)


def narrow(file: SourceFile, node: cst.If, runtime: RuntimeNames) -> None:
    """Have a condition hold on rank 0 alone; all ranks ask for what it asked before."""
    main_rank = cst.parse_expression(runtime.main_rank(file))

    def extend(updated: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(updated, cst.BaseExpression)
        is_open = isinstance(updated, (cst.IfExp, cst.Lambda, cst.NamedExpr)) or (
            isinstance(updated, cst.BooleanOperation) and isinstance(updated.operator, cst.Or)
        )
        if is_open and not updated.lpar:
            updated = updated.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        return cst.BooleanOperation(updated, cst.And(), main_rank)

    file.change(node.test, extend)
    if not node.whitespace_before_test.value:  # if(x):
        file.change(node, lambda updated: updated.with_changes(whitespace_before_test=cst.SimpleWhitespace(" ")))


def guard_function(file: SourceFile, function: cst.FunctionDef, runtime: RuntimeNames) -> None:
    """Have other ranks return from a function where it begins."""
    text = docstring(function)
    first = next(s for s in function.body.body if s is not text and not _is_global(s))
    assert isinstance(first, cst.BaseStatement)
    condition = runtime.main_rank(file)
    file.before(first, f"if {negated(condition)}:\n    return")


def negated(condition: str) -> str:
    """Return the condition that holds on the other ranks."""
    return condition.replace(" == 0", " != 0") if condition.endswith(" == 0") else f"not {condition}"


def _is_global(statement: cst.CSTNode) -> bool:
    return isinstance(statement, cst.SimpleStatementLine) and isinstance(statement.body[0], (cst.Global, cst.Nonlocal))


_BRACKETED = (cst.Dict, cst.List, cst.Set, cst.DictComp, cst.ListComp, cst.SetComp)


def guard_hoisted(
    file: SourceFile,
    line: cst.SimpleStatementLine,
    computed: Mapping[int, str],
    texts: Collection[int],
    runtime: RuntimeNames,
) -> None:
    """Put a call under the condition, behind lines in which all ranks compute some of its arguments.

    Args:
        computed: the names for these arguments, by their index.
        texts: those that are objects, of which all ranks make the text.
    """
    test = cst.parse_expression(runtime.main_rank(file))
    expression = line.body[0]
    assert isinstance(expression, cst.Expr) and isinstance(expression.value, cst.Call)
    for index in computed:
        file.edits.once(expression.value.args[index], _HOISTED)

    def change(updated: cst.CSTNode) -> cst.FlattenSentinel[cst.CSTNode]:
        assert isinstance(updated, cst.SimpleStatementLine)
        (expression,) = updated.body
        assert isinstance(expression, cst.Expr) and isinstance(expression.value, cst.Call)
        args = list(expression.value.args)
        above: list[cst.SimpleStatementLine] = []
        for index, bound in computed.items():
            value = args[index].value
            if index in texts:
                value = cst.Call(cst.Name("str"), [cst.Arg(value)])
            if "\n" in cst.Module([]).code_for_node(value) and not (value.lpar or isinstance(value, _BRACKETED)):
                value = value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
            above.append(cst.SimpleStatementLine([cst.Assign([cst.AssignTarget(cst.Name(bound))], value)]))
            args[index] = args[index].with_changes(value=cst.Name(bound))
        call = expression.value.with_changes(args=args)
        body = updated.with_changes(body=[expression.with_changes(value=call)], leading_lines=[])
        lines = [*above, cst.If(test, cst.IndentedBlock([body]))]
        lines[0] = lines[0].with_changes(leading_lines=updated.leading_lines)
        return cst.FlattenSentinel(lines)

    file.change(line, change)
