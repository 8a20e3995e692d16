"""The classes of a family of old trials: those that inherit from each other, and the names that they share."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ds_migrate.upgrade.functions import all_parameters, receiver
from ds_migrate.upgrade.module_edits import ModuleEdits

Key = tuple[Path, str]


@dataclass(frozen=True, eq=False)
class OldClass:
    """A class of the family. ``lineage``: its base classes in this project, as Python looks into them."""

    key: Key
    node: ast.ClassDef
    edits: ModuleEdits
    lineage: tuple[Key, ...]

    @property
    def name(self) -> str:
        return self.node.name

    @cached_property
    def methods(self) -> dict[str, ast.FunctionDef]:
        return {node.name: node for node in self.node.body if isinstance(node, ast.FunctionDef)}


@dataclass(eq=False)
class Family:
    """Old trials and their base classes. ``trials`` are those that are trained: the classes that nobody builds on."""

    classes: dict[Key, OldClass]

    @cached_property
    def trials(self) -> list[OldClass]:
        parents = {key for cls in self.classes.values() for key in cls.lineage}
        return [cls for key, cls in self.classes.items() if key not in parents]

    def defining(self, cls: OldClass, method: str) -> OldClass | None:
        """Return the class whose method of this name an instance of ``cls`` has."""
        line = (cls, *(self.classes[key] for key in cls.lineage if key in self.classes))
        return next((owner for owner in line if method in owner.methods), None)

    def owners(self, method: str) -> list[OldClass]:
        """Return the classes that define the method."""
        return [cls for cls in self.classes.values() if method in cls.methods]

    @cached_property
    def taken(self) -> set[str]:
        """The attributes that instances have or are asked for."""
        found: set[str] = set()
        for cls in self.classes.values():
            found |= cls.methods.keys()
            found |= {
                t.id for s in cls.node.body if isinstance(s, ast.Assign) for t in s.targets if isinstance(t, ast.Name)
            }
            for method in cls.methods.values():
                me = receiver(method)
                found |= {a.attr for a in _attributes(method) if isinstance(a.value, ast.Name) and a.value.id == me}
        return found

    def fresh(self, *wanted: str) -> str:
        """Return the first of the attribute names that is free."""
        return next(name for name in (*wanted, *(f"{wanted[-1]}_{n}" for n in range(2, 99))) if name not in self.taken)

    @cached_property
    def context(self) -> str:
        """The attribute that keeps the context; "" when the trials keep none."""
        for cls in self.classes.values():
            init = cls.methods.get("__init__")
            if init is None or len(all_parameters(init)) < 2:
                continue
            me, given = all_parameters(init)[0].arg, all_parameters(init)[1].arg
            for node in ast.walk(init):
                if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and node.value.id == given:
                    for target in node.targets:
                        if (
                            isinstance(target, ast.Attribute)
                            and isinstance(target.value, ast.Name)
                            and target.value.id == me
                        ):
                            return target.attr
        return ""


def _attributes(node: ast.AST) -> Iterator[ast.Attribute]:
    return (n for n in ast.walk(node) if isinstance(n, ast.Attribute))
