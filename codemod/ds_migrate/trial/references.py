"""The uses of a trial's attribute: by the trial itself, under a local name, and by what holds the trial."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.syntax.nodes import dotted, parameters
from ds_migrate.syntax.source import SourceFile
from ds_migrate.trial.batch_calls import BatchCalls
from ds_migrate.trial.model import Trial

Reference = tuple[SourceFile, cst.Name | cst.Attribute, cst.FunctionDef]


def references(trial: Trial, target: str) -> Iterator[Reference]:
    """Yield every use of ``target`` (``self.model``) in a function, whatever it is called there."""
    for part, function in trial.methods():
        for node in part.file.spelled(target, below=function):
            if isinstance(node, cst.Attribute):
                yield part.file, node, function
        if function.name.value != "__init__":
            yield from _under_local_names(part.file, function, target)
    holders = BatchCalls(trial)
    attribute = target.removeprefix("self.")
    for file in trial.files:
        for node in file.attributes_by_name.get(attribute.rpartition(".")[2], ()):
            holder, _, last = (dotted(node) or "").rpartition(".")
            if last != attribute or holder in ("", "self"):
                continue
            owner = next((a for a in file.ancestors(node) if isinstance(a, cst.ClassDef)), None)
            found = file.function(node)
            if found is not None and holders.is_trial(holder, owner):
                yield file, node, found


def _under_local_names(file: SourceFile, function: cst.FunctionDef, target: str) -> Iterator[Reference]:
    """Yield reads of names that are set once in the function, to ``target``."""
    taken = {p.name.value for p in parameters(function)} | {
        name.value
        for loop in (*file.nodes(cst.For, below=function), *file.nodes(cst.CompFor, below=function))
        for name in file.nodes(cst.Name, below=loop.target)
    }
    names = {
        name
        for assign in file.nodes(cst.Assign, below=function)
        if dotted(assign.value) == target
        for one in assign.targets
        if (name := dotted(one.target)) is not None and "." not in name
    }
    single = {name for name in names - taken if len(file.values_of({name}, function)) == 1}
    for node in file.nodes(cst.Name, below=function):
        parent = file.parent(node)
        own = not (isinstance(parent, cst.Attribute) and parent.attr is node)
        if node.value in single and own and not isinstance(parent, cst.AssignTarget):
            yield file, node, function
