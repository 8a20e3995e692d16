"""The beginning of a module: imports, definitions and settings, before its first statement that works."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Collection, Mapping, Sequence

import libcst as cst

from ds_migrate.syntax.nodes import dotted, targets, walk

_SETTING = frozenset({"matplotlib", "seaborn"})
# What else draws random numbers, and works by that.
_SETTINGS = (
    *("torch.manual_seed", "torch.set_", "torch.cuda.manual_seed", "torch.autograd.set_"),
    *("numpy.random.seed", "numpy.set_printoptions", "random.seed"),
)
_WORKING = frozenset({"print", "open", "input", "exec", "eval", "__import__"})


def first_to_work(body: Sequence[cst.CSTNode], bindings: Mapping[str, str]) -> int:
    """Return the place of the first statement of a module that is no import, definition or setting.

    Args:
        body: the statements of the module.
        bindings: what names are bound to by imports.
    """
    settings: set[str] = set()  # the names that settings are bound to, such as a parser of arguments
    for index, statement in enumerate(body):
        if not _prepares(statement, bindings, settings):
            return index
        if isinstance(statement, cst.SimpleStatementLine):
            settings |= {t.value for small in statement.body for t in targets(small) if isinstance(t, cst.Name)}
    return len(body)


def first_to_print(body: Sequence[cst.CSTNode]) -> int:
    """Return the place of the first condition, or attempt, of a module that prints where an import fails."""
    for index, statement in enumerate(body):
        if isinstance(statement, (cst.If, cst.Try)) and any(
            isinstance(node, cst.Call) and dotted(node.func) in _WORKING for node in walk(statement)
        ):
            return index
    return len(body)


def _prepares(statement: cst.CSTNode, bindings: Mapping[str, str], settings: Collection[str]) -> bool:
    if isinstance(statement, (cst.FunctionDef, cst.ClassDef)):
        return True
    if isinstance(statement, (cst.If, cst.Try)):
        return any(isinstance(n, (cst.Import, cst.ImportFrom)) for n in walk(statement))
    return isinstance(statement, cst.SimpleStatementLine) and all(
        _sets(n, bindings, settings) for n in walk(statement) if isinstance(n, cst.Call)
    )


def _sets(call: cst.Call, bindings: Mapping[str, str], settings: Collection[str]) -> bool:
    """Return whether a call sets something, or computes with the standard library alone."""
    root, _, rest = (dotted(call.func) or "").partition(".")
    if root not in bindings:
        return root in settings or (hasattr(builtins, root) and root not in _WORKING)
    name = bindings[root] + ("." + rest if rest else "")
    library = name.partition(".")[0]
    is_setting = library in _SETTING or (library in sys.stdlib_module_names and library != "random")
    return is_setting or name.startswith(_SETTINGS)


def asks_for_main(node: cst.CSTNode) -> bool:
    """Return whether a node is an ``if`` by ``__name__``."""
    return isinstance(node, cst.If) and "__name__" in {n.value for n in walk(node.test) if isinstance(n, cst.Name)}
