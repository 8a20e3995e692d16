"""Names that a program looks up by their text: with ``getattr()``, ``eval()`` and the like."""

from __future__ import annotations

import libcst as cst

from ds_migrate.plain.dataflow.classes import Classes
from ds_migrate.plain.dataflow.lookup.imported_modules import leading_text
from ds_migrate.plain.dataflow.values import NOTHING, Kind, Value, Values, of_kind
from ds_migrate.plain.dataflow.variables import Variables

_MOST_CHOICES = 50  # classes of a module from which a name that is not written chooses


class LookedUpNames:
    """The meanings of such names."""

    def __init__(self, variables: Variables, classes: Classes) -> None:
        self._variables = variables
        self._classes = classes

    def attributes(self, owners: Values, written: cst.BaseExpression | None) -> Values:
        """Return what ``getattr()`` may find in libraries, files and instances, by a name as it is written."""
        external = {
            Value(Kind.EXTERNAL, 0, f"{owner.name}.?" if owner.name != "?" else "?")
            for owner in of_kind(owners, Kind.EXTERNAL)
        }
        defined = {value for owner in of_kind(owners, Kind.FILE) for value in self.defined_in(owner, written)}
        return frozenset(external | defined) | self._of_instances(of_kind(owners, Kind.INSTANCE), written)

    def defined_in(self, module: Value, written: cst.BaseExpression | None) -> Values:
        """Return the classes and functions of a file or package of the program that ``getattr()`` may find."""
        if isinstance(written, cst.SimpleString):
            return self._variables.held((module.key, str(written.evaluated_value)))
        held = frozenset(
            v for name in self._variables.names(module.key) for v in self._variables.held((module.key, name))
        )
        path = self._variables.file(module).path
        own = frozenset(
            v for v in of_kind(held, Kind.CLASS, Kind.FUNCTION)
            if (path.parent in (origin := self._variables.file(v).path).parents and path.name == "__init__.py")
            or origin == path
        )  # fmt: skip
        return own if len(own) <= _MOST_CHOICES else NOTHING

    def _of_instances(self, owners: Values, written: cst.BaseExpression | None) -> Values:
        """Return the attributes that ``getattr()`` may find by a name, or by the beginning of one, as it is written."""
        text = "" if written is None else leading_text(written)
        if not text:
            return NOTHING
        begin, found = f".{text}", set[Value]()
        for key in {key for owner in owners for key in self._classes.keepers(owner.key)}:
            for name in self._variables.names(key):
                if name == begin or (not isinstance(written, cst.SimpleString) and name.startswith(begin)):
                    found |= self._variables.held((key, name))
        return frozenset(found)
