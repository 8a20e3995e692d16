"""Calls of code that is in no file of the program, and that get the path of a file which rank 0 alone writes.

A function of the program may hand the path on to one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.dataflow.calls.library_calls import is_of_library
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.ranks.files.file_names import root_of
from ds_migrate.plain.ranks.files.file_readers import FileReaders, Read, Write
from ds_migrate.plain.ranks.rank_guards import is_guarded
from ds_migrate.syntax.nodes import called_name, code
from ds_migrate.syntax.source import SourceFile

_DEPTH = 3  # of functions that hand a path on
_LOOPS = (cst.For, cst.While)
_WRITER = re.compile("save|write|dump|export|log|plot|upload|to_|mkdir|make_?dirs|remove", re.IGNORECASE)


def users_of(write: Write, readers: FileReaders, flow: Flow) -> list[Read]:
    """Return the calls that may read what a call has written, as they get the same path behind it."""
    file, written, path = write
    text, function = code(path), file.function(written)
    is_everywhere = function is None or text.startswith("self.") or isinstance(path, cst.SimpleString)
    return [
        user
        for call in file.nodes(cst.Call, below=file.module if is_everywhere else function)
        if call is not written and any(code(_path_of(arg.value)) == text for arg in call.args)
        if not is_guarded(call, file)
        for user in _takers(call, text, file, flow, _DEPTH)
        if not is_guarded(user[1], user[0]) and readers.call_order.may_follow(user, (file, written))
    ]


def _takers(call: cst.Call, path: str, file: SourceFile, flow: Flow, depth: int) -> Iterator[Read]:
    """Yield a call that may read the path that it gets, or those in a function of the program that get it from one."""
    if _may_read(call, file, flow):
        yield file, call
    for (owner, name), given in flow.passed(call, file) if depth else ():
        home, function = (flow.function_of(owner) if code(_path_of(given)) == path else None) or (file, None)
        for inner in home.nodes(cst.Call, below=function) if function is not None else ():
            if any(code(_path_of(arg.value)) == name for arg in inner.args):
                yield from _takers(inner, name, home, flow, depth - 1)


def users_of_folder(write: Write, readers: FileReaders, flow: Flow) -> list[Read]:
    """Return the calls that may read what a call has written, as they get its folder behind it."""
    file, written, path = write
    paths = [path, *flow.scopes(file).assigned(path)] if isinstance(path, (cst.Name, cst.Attribute)) else [path]
    folders = [root_of(one) for one in paths]
    found = [user for one in folders if one not in paths for user in users_of((file, written, one), readers, flow)]
    return [(home, call) for home, call in found if not any(isinstance(o, _LOOPS) for o in home.ancestors(call))]


def _path_of(node: cst.BaseExpression) -> cst.BaseExpression:
    """Return what an expression is as a path: ``path`` of ``str(path)``."""
    is_same = isinstance(node, cst.Call) and len(node.args) == 1 and called_name(node) in ("str", "Path", "fspath")
    return node.args[0].value if isinstance(node, cst.Call) and is_same else node


def _may_read(call: cst.Call, file: SourceFile, flow: Flow) -> bool:
    """Return whether a call is of a library beside Python's own, and its name is none of what writes."""
    return is_of_library(call, file, flow) and not _WRITER.search(called_name(call))
