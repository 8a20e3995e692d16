"""Calls that ask whether a file or folder is there: ``os.path.exists(path)``, ``path.is_file()``."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.syntax.nodes import argument, called_name, dotted, walk
from ds_migrate.syntax.one_line import expression_text
from ds_migrate.syntax.source import SourceFile

_LOOKS = frozenset({"exists", "isdir", "is_dir", "isfile", "is_file"})
_MESSAGES = frozenset({"print", "format", "debug", "info", "warning", "warn", "error", "exception", "exit"})


def is_look(node: cst.CSTNode, file: SourceFile) -> bool:
    """Return whether a node is such a call: of a method, or of what the file imports."""
    func = node.func if isinstance(node, cst.Call) else None
    if isinstance(func, cst.Attribute):
        return func.attr.value in _LOOKS
    is_imported = isinstance(func, cst.Name) and func.value in file.names.bindings
    return is_imported and (file.names.qualified(func) or "").rpartition(".")[2] in _LOOKS


def looks_below(node: cst.CSTNode, file: SourceFile) -> Iterator[cst.Call]:
    """Yield the calls at or below a node that ask whether a file is there."""
    return (call for call in file.nodes(cst.Call, below=node) if is_look(call, file))


def path_of(call: cst.Call) -> cst.BaseExpression | None:
    """Return the path that a call is given, or whose method it is: of ``makedirs(path)``, ``path.mkdir()``."""
    given = argument(call, 0, "path") or argument(call, None, "name")
    return given.value if given is not None else call.func.value if isinstance(call.func, cst.Attribute) else None


def paths_looked_for(test: cst.BaseExpression, file: SourceFile) -> set[str]:
    """Return the paths, as written, that a condition looks for."""
    paths = map(path_of, looks_below(test, file))
    return {expression_text(path) for path in paths if path is not None}


def first_look(call: cst.Call, file: SourceFile) -> cst.BaseStatement:
    """Return the first statement on the way to a load that opens its file, or looks whether that is there."""
    load = _opened(call, file) or call
    path = expression_text(load.args[0].value) if load.args else None
    first = file.statement(load)
    around = {id(outer) for outer in (call, *file.ancestors(call))}
    for look in looks_below(file.function(call) or file.module, file):
        if file.position(look) >= file.position(first):
            continue
        asked, statement = path_of(look), file.statement(look)
        is_written_there = id(statement) not in around and _may_write(statement, path, file)
        is_on_the_way = id(file.parent(statement)) in around and not is_written_there
        if asked is not None and expression_text(asked) == path and is_on_the_way:
            first = statement
    return first


def _may_write(statement: cst.BaseStatement, path: str | None, file: SourceFile) -> bool:
    """Return whether a statement that looks for a file may write it: by a call that is given its path, or in a branch.

    In a branch any call may write it, under another name of its path.
    """
    test = {id(node) for node in walk(statement.test)} if isinstance(statement, cst.If) else None
    return any(
        (test is not None and id(call) not in test) or any(expression_text(arg.value) == path for arg in call.args)
        for call in file.nodes(cst.Call, below=statement)
        if not is_look(call, file) and not _only_reports(call, file)
    )


def _only_reports(call: cst.Call, file: SourceFile) -> bool:
    """Return whether a call makes a message, for the screen, a log or an error, or ends the program."""
    return any(
        isinstance(outer, cst.Raise) or (isinstance(outer, cst.Call) and called_name(outer) in _MESSAGES)
        for outer in (call, *file.ancestors(call))
    )


def _opened(call: cst.Call, file: SourceFile) -> cst.Call | None:
    """Return the ``open()`` of the block around a load that reads its file."""
    name = dotted(call.args[0].value) if call.args else None
    for outer in file.ancestors(call):
        for item in outer.items if isinstance(outer, cst.With) else ():
            if item.asname is not None and dotted(item.asname.name) == name and isinstance(item.item, cst.Call):
                return item.item
    return None
