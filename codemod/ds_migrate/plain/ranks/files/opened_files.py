"""Calls that open a file to write it."""

from __future__ import annotations

import libcst as cst

from ds_migrate.syntax.nodes import argument, dotted

_WRITES = frozenset("".join(parts) for parts in (
    (how, plus, kind) for how in "wax" for plus in ("", "+") for kind in ("", "b", "t")
)) | {"wb+", "ab+"}  # fmt: skip
OPENERS = frozenset({"open", "io.open", "codecs.open", "gzip.open", "bz2.open", "lzma.open"})


def opens_to_write(call: cst.Call) -> bool:
    """Return whether a call opens a file to write it: by its path, or as ``path.open("w")``."""
    if dotted(call.func) in OPENERS:
        return bool(call.args) and _mode_of(call) in _WRITES
    is_method = isinstance(call.func, cst.Attribute) and call.func.attr.value == "open"
    return is_method and _mode_of(call, 0) in _WRITES


def path_opened(call: cst.Call) -> cst.BaseExpression:
    """Return the path that a call opens."""
    if dotted(call.func) not in OPENERS and isinstance(call.func, cst.Attribute):
        return call.func.value
    return call.args[0].value


def _mode_of(call: cst.Call, position: int = 1) -> str:
    """Return the mode in which a call opens a file; "r" where it names none, or none that is written there."""
    given = argument(call, position, "mode")
    return str(given.value.evaluated_value) if given is not None and isinstance(given.value, cst.SimpleString) else "r"
