"""The values that variables of a program may hold: optimizers, modules, loaders and what passes them on.

Values are followed through assignments, arguments, results, attributes, tuples and dicts, over all files of the
program. The order of statements is ignored: a variable holds everything that is ever assigned to it.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Kind(Enum):
    """The kinds of values that are distinguished."""

    OPTIMIZER = "optimizer"
    MODULE = "module"
    OBJECT = "object"  # what an unknown call returned: a module, a tensor, anything
    SCHEDULE = "schedule"
    SCALER = "scaler"
    LOADER = "loader"
    FUNCTION = "function"
    CLASS = "class"
    INSTANCE = "instance"  # of a class of the program; all instances of a class are one
    METHOD = "method"
    FILE = "file"
    EXTERNAL = "external"  # a name of a library, such as torch.optim.SGD
    SEQUENCE = "sequence"
    MAPPING = "mapping"
    PART = "part"  # an attribute or item of a module

    __hash__ = object.__hash__  # kinds are hashed millions of times


class Value(NamedTuple):
    """A value, known by the node that makes it: a tuple, as Python hashes and compares millions of them.

    Attributes:
        kind: what it is.
        key: the identity of that node; 0 for what has none.
        name: the dotted name of an external value, the path of a part, the class of an instance.
        of: the identity of the class that a method or module belongs to, of the whole for a part; else 0.
    """

    kind: Kind
    key: int
    name: str = ""
    of: int = 0


Values = frozenset[Value]
Variable = tuple[int, str]  # the identity of its scope or owner, and its name
NOTHING: Values = frozenset()
_DEEPEST = 10  # attributes and items below a module, or dots in the name of a library


def of_kind(values: Values, *kinds: Kind) -> Values:
    """Return the values of these kinds."""
    if not values:  # as nearly always
        return NOTHING
    return frozenset([value for value in values if value.kind in kinds])


def are_all(values: Values, *kinds: Kind) -> bool:
    """Return whether there are values, and all of these kinds."""
    return bool(values) and all(value.kind in kinds for value in values)


def without_parts(values: Values) -> Values:
    """Return values without the parts of others among them: a model, or a part of it, is named as the model."""
    wholes = {value.key for value in values if value.kind is not Kind.PART}
    return frozenset(value for value in values if value.kind is not Kind.PART or value.key not in wholes)


def attribute_owner(value: Value) -> int | None:
    """Return whose variables the attributes of a value are; None where it has none that are followed."""
    if value.kind is Kind.MODULE:
        return value.of or value.key
    return value.key if value.kind in (Kind.INSTANCE, Kind.CLASS, Kind.OBJECT) else None


def deeper(base: Value, path: str) -> Values:
    """Return a part of a module, or a name of a library: nothing where ``node = node.next`` finds ever deeper ones."""
    if path.count(".") + path.count("[") > _DEEPEST:
        return NOTHING
    return frozenset(
        {Value(Kind.EXTERNAL, 0, path) if base.kind is Kind.EXTERNAL else Value(Kind.PART, base.key, path)}
    )
