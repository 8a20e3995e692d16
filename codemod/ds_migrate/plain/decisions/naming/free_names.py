"""Names for engines: like those of their optimizers, and free."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from itertools import count

import libcst as cst

from ds_migrate.syntax.source import SourceFile

_WORD = re.compile(r"optimi[sz]er|optim|opt", re.IGNORECASE)


def free_in(function: cst.FunctionDef, wish: str, file: SourceFile, others: Collection[str] = ()) -> str:
    """Return the wish, or what is like it, as a name that nothing in the function has, and none of these others."""
    taken = {node.value for node in file.nodes(cst.Name, below=function)}.union(others)
    return next(name for name in numbered(wish) if name not in taken)


def has_attribute(file: SourceFile, name: str) -> bool:
    """Return whether an object may have an attribute of a name in a file, or gets it there."""
    return (
        name in file.attributes_by_name
        or f".{name}" in file.names.taken
        or (name in file.names.used and any(node.name.value == name for node in file.nodes(cst.FunctionDef)))
    )


def numbered(wish: str) -> Iterator[str]:
    yield wish
    yield f"ds_{wish}"
    yield from (f"ds_{wish}{number}" for number in count(2))


def named_like(optimizer: str) -> str:
    """Return a name for the engine of an optimizer: engine_d for optimizer_d."""
    name = _WORD.sub("engine", optimizer)
    return name if name != optimizer else f"{optimizer}_engine"


def last_part(name: str) -> str:
    return name.rpartition(".")[2]


def last_word(expression: str) -> str:
    """Return what an expression ends with as a name: nets_a of ``self.nets["a"]``."""
    return re.sub(r"\W+", "_", re.sub(r"^\*?(\w+\.)+", "", expression)).strip("_") or "model"
