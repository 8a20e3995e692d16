"""Names for engines: like those of their optimizers, and free."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from itertools import count

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Variable
from ds_migrate.plain.recognition.facts import Site
from ds_migrate.syntax.source import SourceFile

_WORD = re.compile(r"optimi[sz]er|optim|opt", re.IGNORECASE)


class FreeNames:
    """The names of a program that are free for its engines."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._attributes: dict[Variable, str] = {}  # of those that hold engines, by that of the optimizer

    def at(self, site: Site, sites: Sequence[Site], is_attribute: bool) -> str:
        """Return a name that is free where the engine is made: engine where no other one can be meant.

        ``is_attribute``: whether the engine is an attribute where its optimizer is one.
        """
        if len(sites) > 1 and all(_is_local(one) for one in sites):
            assert site.function is not None
            if [one for one in sites if one.function is site.function] == [site]:
                return free_in(site.function, "engine", site.file)
        held = {one: next(iter((*one.parts, *one.modules, *one.tensors)), "model") for one in sites}
        wish = "engine" if len(sites) == 1 else f"{_last_word(held[site])}_engine"
        if len(set(held.values())) < len(sites):  # several optimizers hold the same
            wish = named_like(_last_word(site.optimizer_name))
        if site.clause:
            return site.file.names.fresh(f"{wish}s", f"ds_{wish}s")
        if isinstance(site.target, cst.Attribute) and is_attribute:
            wish = next(name for name in _numbered(wish) if name not in site.file.names.taken)
            return self.attribute(site.variable, wish, site.file)
        return site.file.names.fresh(wish, f"ds_{wish}")

    def attribute(self, beside: Variable, wish: str, file: SourceFile) -> str:
        """Return the wish, or what is like it, as an attribute that the owner of another one does not have.

        Its class may be built on classes of other files, which name their attributes too.
        """
        if beside in self._attributes:
            return self._attributes[beside]
        owner = self._flow.node_of(beside[0])
        is_class = owner is not None and isinstance(owner[1], cst.ClassDef)
        files = {file, *(self._flow.classes.files_of_relatives(beside[0]) if is_class else self._flow.files.values())}
        name = next(name for name in _numbered(wish) if not any(_has_attribute(one, name) for one in files))
        file.names.taken.add(name)
        for one in files:
            one.names.taken.add(f".{name}")
        self._attributes[beside] = name
        return name


def free_in(function: cst.FunctionDef, wish: str, file: SourceFile, others: Collection[str] = ()) -> str:
    """Return the wish, or what is like it, as a name that nothing in the function has, and none of these others."""
    taken = {node.value for node in file.nodes(cst.Name, below=function)}.union(others)
    return next(name for name in _numbered(wish) if name not in taken)


def _has_attribute(file: SourceFile, name: str) -> bool:
    """Return whether an object may have an attribute of a name in a file, or gets it there."""
    return (
        name in file.attributes_by_name
        or f".{name}" in file.names.taken
        or (name in file.names.used and any(node.name.value == name for node in file.nodes(cst.FunctionDef)))
    )


def _numbered(wish: str) -> Iterator[str]:
    yield wish
    yield f"ds_{wish}"
    yield from (f"ds_{wish}{number}" for number in count(2))


def named_like(optimizer: str) -> str:
    """Return a name for the engine of an optimizer: engine_d for optimizer_d."""
    name = _WORD.sub("engine", optimizer)
    return name if name != optimizer else f"{optimizer}_engine"


def last_part(name: str) -> str:
    return name.rpartition(".")[2]


def _last_word(expression: str) -> str:
    """Return what an expression ends with as a name: nets_a of ``self.nets["a"]``."""
    return re.sub(r"\W+", "_", re.sub(r"^\*?(\w+\.)+", "", expression)).strip("_") or "model"


def _is_local(site: Site) -> bool:
    """Return whether only the function that makes an optimizer has a name for it."""
    if site.function is None or not isinstance(site.target, cst.Name):
        return False
    return all(
        item.name.value != site.target.value
        for node in site.file.nodes(cst.Global, cst.Nonlocal, below=site.function)
        for item in node.names
    )
