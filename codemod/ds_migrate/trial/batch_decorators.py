"""The decorators of methods that take a batch, and their use of it."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

import libcst as cst

from ds_migrate.syntax.nodes import dotted, parameters
from ds_migrate.syntax.source import SourceFile
from ds_migrate.trial.model import Trial

_PASS_ON = ("torch.", "typing.", "typing_extensions.", "abc.")


class Passing(Enum):
    ON = "its arguments are only passed on"
    TOUCHED = "the batch is used"
    UNKNOWN = "it is not in this project's files"


def decorators(trial: Trial, file: SourceFile, function: cst.FunctionDef) -> Iterator[tuple[cst.Decorator, Passing]]:
    """Yield the decorators of a method that takes the batch first, and what each does with it."""
    for decorator in function.decorators:
        made = decorator.decorator
        name = file.names.qualified(made.func if isinstance(made, cst.Call) else made) or ""
        if not name.startswith(_PASS_ON):
            yield decorator, _passing(trial, name.rpartition(".")[2])


def _passing(trial: Trial, name: str) -> Passing:
    found = [(f, n) for f in trial.files for n in f.nodes(cst.FunctionDef) if n.name.value == name]
    if not found:
        return Passing.UNKNOWN
    inner = [(f, n) for f, outer in found for n in f.nodes(cst.FunctionDef, below=outer) if n is not outer]
    innermost = [(f, n) for f, n in inner if not any(m is not n for m in f.nodes(cst.FunctionDef, below=n))]
    return Passing.ON if innermost and all(_only_passes_on(f, n) for f, n in innermost) else Passing.TOUCHED


def _only_passes_on(file: SourceFile, wrapper: cst.FunctionDef) -> bool:
    """Return whether a wrapper only gives its arguments, but for the first, the trial, to what it wraps."""
    star = wrapper.params.star_arg
    names = {p.name.value for p in parameters(wrapper)[1:]}
    if isinstance(star, cst.Param):
        names.add(star.name.value)
    outer = [a for a in file.ancestors(wrapper) if isinstance(a, cst.FunctionDef)]
    wrapped = {p.name.value for a in outer for p in parameters(a)}
    for node in file.nodes(cst.Name, below=wrapper.body):
        arg = file.parent(node)
        call = file.parent(arg) if isinstance(arg, cst.Arg) and arg.value is node else None
        if node.value in names and not (isinstance(call, cst.Call) and dotted(call.func) in wrapped):
            return False
    return True
