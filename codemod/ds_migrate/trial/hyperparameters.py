"""Hyperparameters that a trial unpacks into a call (``Settings(**context.get_hparams())``): a new one would raise."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from ds_migrate.syntax.nodes import dotted, last_name, targets
from ds_migrate.syntax.source import SourceFile
from ds_migrate.trial.model import Trial

# Mappings and namespaces, which take any name.
_OPEN = frozenset(
    ["dict", "OrderedDict", "AttrDict", "EasyDict", "DotDict", "Dict", "Munch", "Box", "Namespace", "SimpleNamespace"]
)


def unpacked_hyperparameters(trial: Trial) -> list[tuple[SourceFile, cst.Arg]]:
    """Return the arguments that give all hyperparameters by ``**`` to a call which may take no others."""
    files = tuple(dict.fromkeys([*(part.file for part in trial.parts), *trial.files]))
    found = []
    for file in files:
        given = [(call, arg) for call in file.nodes(cst.Call) for arg in call.args if arg.star == "**"]
        names = _names(file) if given else set()
        found += [(file, arg) for call, arg in given if _is_whole(arg.value, names) and not _takes_any(call, files)]
    return found


def _names(file: SourceFile) -> set[str]:
    """Return the names that hold all hyperparameters in a file."""
    names = {"hparams", "self.hparams"}
    assignments = [node for node in file.nodes(cst.Assign, cst.AnnAssign) if node.value is not None]
    while True:
        found = {
            name
            for node in assignments
            if _is_whole(node.value, names)
            for target in targets(node)
            if (name := dotted(target)) is not None
        }
        if found <= names:
            return names
        names |= found


def _is_whole(node: cst.BaseExpression, names: set[str]) -> bool:
    """Return whether the expression is all hyperparameters, or a copy of them."""
    if dotted(node) in names:
        return True
    if isinstance(node, cst.Call):
        if isinstance(node.func, cst.Attribute) and node.func.attr.value in ("get_hparams", "copy", "items"):
            return node.func.attr.value == "get_hparams" or _is_whole(node.func.value, names)
        return len(node.args) == 1 and _is_whole(node.args[0].value, names)
    if isinstance(node, cst.DictComp):
        return not node.for_in.ifs and _is_whole(node.for_in.iter, names)
    if isinstance(node, cst.Dict):
        return any(isinstance(e, cst.StarredDictElement) and _is_whole(e.value, names) for e in node.elements)
    return False


def _takes_any(call: cst.Call, files: Iterable[SourceFile]) -> bool:
    """Return whether a call takes keyword arguments of any name."""
    name = last_name(call.func)
    for file in files:
        for node in file.nodes(cst.FunctionDef):
            if node.name.value == name:
                return node.params.star_kwarg is not None
        for node in file.nodes(cst.ClassDef):
            if node.name.value == name:
                made = next(
                    (s for s in node.body.body if isinstance(s, cst.FunctionDef) and s.name.value == "__init__"), None
                )
                return made is not None and made.params.star_kwarg is not None
    return name in _OPEN
