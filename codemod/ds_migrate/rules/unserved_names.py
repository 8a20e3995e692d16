"""Names of Determined's library that stay: their import moves to where they are used, and a review explains it."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.conversion.rule_context import RuleContext
from ds_migrate.names import Verdict, advice_of, row_of
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import docstring, dotted, walk
from ds_migrate.syntax.source import SourceFile

CODE = Code.IMPORTS


def review_refused(ctx: RuleContext, file: SourceFile, node: cst.CSTNode, qualified: str) -> None:
    """Report a use of a name that the target has only to explain what to do instead."""
    row = row_of(qualified)
    refused = ctx.target.ships_helpers and row is not None and row.verdict is Verdict.REFUSE
    if refused and _is_first(file, qualified):
        ctx.review(CODE, file, node, f"{qualified} raises an error when it is used", advice_of(qualified))


def keep(ctx: RuleContext, file: SourceFile, name: cst.Name, chain: cst.CSTNode, qualified: str) -> None:
    """Let a use of a name that the target lacks have it from determined, imported no earlier than it is needed.

    ``chain`` is the ``a.b.c`` that begins with ``name`` and means ``qualified``.
    """
    bound = file.names.bindings.get(name.value, name.value)
    if not stays_where_it_is(ctx, file, name.value):
        if ctx.target.has(bound):
            module = _module_of(qualified)
            _import(file, chain, f"import {module}")
            if dotted(chain) != qualified:
                file.replace(chain, qualified)
            else:
                file.edits.once(name, CODE)  # so that nothing else renames it
        elif "." in bound:
            module, _, attribute = bound.rpartition(".")
            suffix = "" if name.value == attribute else f" as {name.value}"
            _import(file, chain, f"from {module} import {attribute}{suffix}")
    if _is_first(file, qualified):
        ctx.review(
            CODE, file, chain, f"{qualified} has no counterpart in {ctx.target.package}, it still needs determined",
            advice_of(qualified),
        )  # fmt: skip


def _is_first(file: SourceFile, qualified: str) -> bool:
    """Return whether this is the first use of the name in the file: one review is enough."""
    return file.edits.once(file.module, f"{CODE} {qualified}")


def stays_where_it_is(ctx: RuleContext, file: SourceFile, bound: str) -> bool:
    """Return whether the import that binds a name is in a function, or is guarded, and has no name that the target has:
    it is not touched."""
    return any(_binds(node, bound) and is_left(ctx, file, node) for node in file.names.import_nodes)


def is_left(ctx: RuleContext, file: SourceFile, node: cst.Import | cst.ImportFrom) -> bool:
    """Return whether an import below the module's first level has only names that the target lacks."""
    if file.statement(node) in file.module.body:
        return False
    names = list(_imported(node))
    return bool(names) and not any(ctx.target.has(name) for name in names)


def _imported(node: cst.Import | cst.ImportFrom) -> Iterator[str]:
    if isinstance(node, cst.Import):
        yield from (dotted(alias.name) or "" for alias in node.names)
    elif not isinstance(node.names, cst.ImportStar):
        yield from (f"{dotted(node.module)}.{dotted(alias.name)}" for alias in node.names)


def _binds(node: cst.Import | cst.ImportFrom, bound: str) -> bool:
    if isinstance(node.names, cst.ImportStar):
        return False
    names = [
        dotted(a.asname.name) if a.asname is not None else (dotted(a.name) or "").split(".")[0] for a in node.names
    ]
    return bound in names


def _module_of(qualified: str) -> str:
    """Return the module that has to be imported for a dotted name: what stands before its class or its last part."""
    parts = qualified.split(".")
    first = next((index for index, part in enumerate(parts) if part[:1].isupper()), len(parts) - 1)
    return ".".join(parts[: max(first, 1)])


def _import(file: SourceFile, use: cst.CSTNode, text: str) -> None:
    """Import at the start of the function that holds the use, elsewhere in front of the statement that does; once."""
    place = _place(file, use)
    if file.edits.once(place, text):
        file.before(place, text, above_comments=True)


def _place(file: SourceFile, use: cst.CSTNode) -> cst.BaseStatement:
    function = file.function(use)
    if function is not None and file.statement_in(use, function) is not None:
        own = docstring(function)
        first = next(statement for statement in function.body.body if statement is not own)
        if isinstance(first, cst.BaseStatement):
            return first
    inner: cst.CSTNode = use
    for outer in file.ancestors(use):
        block = outer.body if isinstance(outer, (cst.Module, cst.IndentedBlock)) else ()
        if isinstance(inner, cst.BaseStatement) and inner in block:
            users = (s for s in block if isinstance(s, cst.BaseStatement) and _uses(file, s, use))
            return next(users, inner)
        inner = outer
    raise AssertionError("every use is in a statement")


def _uses(file: SourceFile, statement: cst.BaseStatement, use: cst.CSTNode) -> bool:
    """Return whether a statement reads the name that the use begins with, outside of functions."""
    wanted = (dotted(use) or "").split(".")[0]
    for node in walk(statement):
        if isinstance(node, cst.Name) and node.value == wanted and file.function(node) is file.function(use):
            parent = file.parent(node)
            imports = any(isinstance(a, (cst.Import, cst.ImportFrom)) for a in file.ancestors(node))
            if not imports and not (isinstance(parent, cst.Attribute) and parent.attr is node):
                return True
    return False
