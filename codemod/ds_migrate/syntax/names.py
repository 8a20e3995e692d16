"""Resolve the names of a file through its imports and their aliases, by binding, never by text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count

import libcst as cst

from ds_migrate.syntax.nodes import dotted


class Names:
    """Import bindings of one module. A name that the module also assigns elsewhere keeps its import's meaning."""

    def __init__(
        self, imports: Sequence[cst.Import | cst.ImportFrom], names: Iterable[cst.Name | cst.Attribute]
    ) -> None:
        self.bindings: dict[str, str] = {}
        self.import_nodes = imports
        for node in imports:
            if isinstance(node, cst.Import):
                for alias in node.names:
                    name = dotted(alias.name) or ""
                    if alias.asname is not None and isinstance(alias.asname.name, cst.Name):
                        self.bindings[alias.asname.name.value] = name
                    else:
                        top = name.split(".")[0]
                        self.bindings.setdefault(top, top)
            elif not isinstance(node.names, cst.ImportStar):
                module_name = "." * len(node.relative) + (dotted(node.module) or "")
                joiner = "" if module_name.endswith(".") or not module_name else "."
                for alias in node.names:
                    bound = alias.asname.name if alias.asname is not None else alias.name
                    if isinstance(bound, cst.Name):
                        self.bindings[bound.value] = f"{module_name}{joiner}{dotted(alias.name)}"
        attributes = {id(node.attr) for node in names if type(node) is cst.Attribute}  # as in dotted()
        self.used = {node.value for node in names if type(node) is cst.Name and id(node) not in attributes}
        self.taken = self.used | set(self.bindings)

    def qualified(self, node: cst.CSTNode | None) -> str | None:
        """Return ``determined.pytorch.DataLoader`` for any spelling of it; None for what is not a dotted name."""
        name = dotted(node)
        if name is None:
            return None
        head, _, rest = name.partition(".")
        bound = self.bindings.get(head)
        if bound is None:
            return name
        return f"{bound}.{rest}" if rest else bound

    def fresh(self, *wishes: str) -> str:
        """Return the first wish that no name of the file has yet, else the last one numbered; taken from now on."""
        name = self.free(*wishes)
        self.taken.add(name)
        return name

    def free(self, *wishes: str) -> str:
        """Return the same for a local name: other functions may use it too."""
        for wish in wishes:
            if wish not in self.taken:
                return wish
        return next(name for number in count(2) if (name := f"{wishes[-1]}{number}") not in self.taken)
