"""Edits of a method that takes an iterator where it took a batch: its parameters and its first line."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from ds_migrate.syntax.nodes import code, dotted, parameters, walk
from ds_migrate.syntax.source import SourceFile
from ds_migrate.trial.batch import first_statement

ORDER = {"train_batch": ("batch", "epoch_idx", "batch_idx"), "evaluate_batch": ("batch", "batch_idx")}


def rename_parameter(file: SourceFile, function: cst.FunctionDef, iterator: str) -> None:
    """Name the batch's parameter ``iterator``, and annotate it as one."""
    param = parameters(function)[1]
    annotation = param.annotation
    wrapped: cst.BaseExpression | None = None
    if annotation is not None:
        text = annotation.annotation
        name = _iterator_name(file)
        if isinstance(text, cst.SimpleString):
            wrapped = cst.SimpleString(f"{text.quote}{name}[{text.raw_value}]{text.quote}")
        else:
            wrapped = cst.parse_expression(f"{name}[x]")

    def rename(updated: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(updated, cst.Param)
        new = updated.with_changes(name=cst.Name(iterator))
        if wrapped is None or updated.annotation is None:
            return new
        inner = wrapped
        if isinstance(inner, cst.Subscript):
            inner = inner.with_changes(slice=[cst.SubscriptElement(cst.Index(updated.annotation.annotation))])
        return new.with_changes(annotation=updated.annotation.with_changes(annotation=inner))

    file.change(param, rename)


def fold_head(file: SourceFile, function: cst.FunctionDef) -> None:
    """Move parameters that no longer fit on the line of ``def`` to a separate line."""
    column = file.position(function)[1] - 1

    def fits(function: cst.FunctionDef) -> bool:
        bare = function.with_changes(leading_lines=[], lines_after_decorators=[], decorators=[])
        head = code(bare.with_changes(body=cst.SimpleStatementSuite([]))).strip()
        return "\n" in head or "\r" in head or column + len(head) <= file.width

    def fold(updated: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(updated, cst.FunctionDef)
        params = updated.params
        if fits(updated) or params.kwonly_params or params.star_kwarg is not None:
            return updated
        closing = cst.ParenthesizedWhitespace(indent=True)
        opening = closing.with_changes(last_line=cst.SimpleWhitespace(file.module.default_indent))
        last = params.params[-1].with_changes(whitespace_after_param=closing)
        return updated.with_changes(
            params=params.with_changes(params=[*params.params[:-1], last]), whitespace_before_params=opening
        )

    if fits(function):
        file.change(function, fold)


def _iterator_name(file: SourceFile) -> str:
    for bound, qualified in file.imports.bindings.items():
        if qualified in ("typing.Iterator", "collections.abc.Iterator"):
            return bound
    for node in file.names.import_nodes:
        if (
            file.imports.runs_with_module(node)
            and isinstance(node, cst.ImportFrom)
            and dotted(node.module) == "typing"
            and not isinstance(node.names, cst.ImportStar)
        ):
            if file.edits.once(node, "Iterator"):
                file.change(node, _with_iterator)
            return "Iterator"
    return file.imports.name("collections.abc", "Iterator")


def _with_iterator(updated: cst.CSTNode) -> cst.CSTNode:
    """Add ``Iterator`` in its place among the names of ``from typing import ...``."""
    assert isinstance(updated, cst.ImportFrom) and not isinstance(updated.names, cst.ImportStar)
    names = list(updated.names)
    index = next((i for i, n in enumerate(names) if code(n.name) > "Iterator"), len(names))
    plain = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    if index == len(names):
        last = names[-1]
        commas = [n.comma for n in names[:-1] if isinstance(n.comma, cst.Comma)]
        joint = commas[-1] if commas else plain
        trailing = last.comma
        names[-1] = last.with_changes(comma=joint)
        names.append(cst.ImportAlias(cst.Name("Iterator"), comma=trailing))
    else:
        before = names[index - 1].comma if index else names[index].comma
        comma = before if isinstance(before, cst.Comma) else plain
        names.insert(index, cst.ImportAlias(cst.Name("Iterator"), comma=comma))
    return updated.with_changes(names=names)


def take_indices(file: SourceFile, function: cst.FunctionDef) -> None:
    """Let keyword-only and ``**kwargs`` forms take the indices that the loop passes by position."""
    params = function.params
    wanted = ORDER[function.name.value][1:]
    given = {p.name.value for p in parameters(function)}
    keyword_only = {p.name.value for p in params.kwonly_params}
    if params.star_kwarg is not None and not set(wanted) <= given:
        kwargs = params.star_kwarg.name.value
        missing = [w for w in wanted if w not in given]

        def add(updated: cst.CSTNode) -> cst.CSTNode:
            assert isinstance(updated, cst.Parameters)
            return updated.with_changes(params=[*updated.params, *(cst.Param(cst.Name(m)) for m in missing)])

        file.change(params, add)
        if any(isinstance(n, cst.Name) and n.value == kwargs for n in walk(function.body)):
            pairs = ", ".join(f'"{m}": {m}' for m in missing)
            add_first_line(file, function, f"{kwargs} = {{{pairs}, **{kwargs}}}")
    elif keyword_only & set(wanted):

        def flatten(updated: cst.CSTNode) -> cst.CSTNode:
            assert isinstance(updated, cst.Parameters)
            return updated.with_changes(
                params=[*updated.params, *updated.kwonly_params], kwonly_params=[], star_arg=cst.MaybeSentinel.DEFAULT
            )

        file.change(params, flatten)


def add_first_line(file: SourceFile, function: cst.FunctionDef, line: str) -> None:
    """Add a line before the first statement, behind the docstring."""
    statement, after = first_statement(function)
    if not isinstance(statement, cst.BaseStatement):  # the whole method follows its colon
        file.change(function, lambda updated: _in_a_block(updated, file.edits.parse(line)))
    elif after:
        file.after(statement, line)
    else:
        file.before(statement, line, above_comments=True)


def _in_a_block(function: cst.CSTNode, first: Sequence[cst.BaseStatement]) -> cst.CSTNode:
    """Return the function with an indented body that begins with these lines."""
    assert isinstance(function, cst.FunctionDef)
    suite = function.body
    if isinstance(suite, cst.SimpleStatementSuite):
        own = cst.SimpleStatementLine(suite.body, trailing_whitespace=suite.trailing_whitespace)
        suite = cst.IndentedBlock([own])
    return function.with_changes(body=suite.with_changes(body=[*first, *suite.body]))
