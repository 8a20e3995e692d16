"""Classes that step an optimizer and that nothing names, as a wrapper copied with the file of another project."""

from __future__ import annotations

import re

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.syntax.nodes import dotted
from ds_migrate.syntax.source import SourceFile

# Calls that may lead to a class by a name that is made when the program runs.
_BY_NAME = re.compile(
    rb"(?<![\w.])(?<!def )(?:(?:eval|exec|globals|__import__)\(|vars\([^)\n]*\)\[|getattr\([^,\n]*,(?!\s*[\"']))"
    rb"|\bimportlib\b|\b__dict__\["
)


def is_of_unnamed_class(node: cst.CSTNode, file: SourceFile, flow: Flow) -> bool:
    """Return whether a node is in a class that no file of a program names, in a file that trains without it.

    A class that calls ``backward()`` has a loop, which another program may run.
    """
    classes = [outer for outer in file.ancestors(node) if isinstance(outer, cst.ClassDef)]
    if not classes:
        return False
    return flow.once(_is_unnamed, classes[-1], file)


def _is_unnamed(flow: Flow, owner: cst.ClassDef, file: SourceFile) -> bool:
    has_bases = any(dotted(base.value) != "object" for base in owner.bases)
    if has_bases or owner.decorators or file.parent(owner) is not file.module:
        return False
    passes = file.attributes_by_name.get("backward", ())
    if not passes or any(outer is owner for one in passes for outer in file.ancestors(one)):
        return False
    word = re.compile(rb"\b%s\b" % owner.name.value.encode())
    data = [other.data for other in flow.files.values()]
    return sum(len(word.findall(each)) for each in data) == 1 and not any(map(_BY_NAME.search, data))
