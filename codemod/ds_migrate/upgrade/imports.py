"""Imports of names that were called otherwise: those of ``pedl``, and names that nothing uses any more."""

from __future__ import annotations

import ast
from collections.abc import Set

from ds_migrate.upgrade.functions import receiver
from ds_migrate.upgrade.module_edits import ModuleEdits
from ds_migrate.upgrade.problem import UpgradeError

GONE = ("ClipGradsL2Norm", "ClipGradsL2Value")
_FRAMEWORK = "pedl.frameworks.pytorch"
_IN_CONTEXT = {"get_hyperparameter": "get_hparam", "get_data_config": "get_data_config"}
_KNOWN = {"PyTorchTrial", "LRScheduler", "DataLoader", "TorchData", "PyTorchCallback", "reset_parameters"}
_ERROR_RATE = '''

def error_rate(predictions, labels):
    """Return the share of wrong predictions."""
    return 1.0 - (predictions.argmax(1) == labels).float().mean()
'''


def upgrade_imports(edits: ModuleEdits, context: str) -> None:
    """Rewrite the imports of a file and the uses of ``pedl`` itself.

    ``context``: the attribute in which the trials of the file keep their context.

    Raises:
        UpgradeError: a name of ``pedl`` has no counterpart.
    """
    _drop(edits)
    if b"pedl" not in edits.data:
        return
    for node in ast.walk(edits.tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "pedl" and not node.level:
            _from_pedl(edits, node)
        elif isinstance(node, ast.Import) and any(alias.name.split(".")[0] == "pedl" for alias in node.names):
            _import_pedl(edits, node, context)


def _from_pedl(edits: ModuleEdits, node: ast.ImportFrom) -> None:
    module = node.module or ""
    names = [alias for alias in node.names if alias.name != "error_rate"]
    for alias in names:
        if not module.startswith(_FRAMEWORK) or alias.name not in _KNOWN:
            raise UpgradeError(
                node, f"{module}.{alias.name} has no counterpart in determined", "remove it, or write what it did"
            )
    taken = ", ".join(alias.name + (f" as {alias.asname}" if alias.asname else "") for alias in names)
    lines = [f"from determined.pytorch import {taken}"] if taken else []
    if len(names) < len(node.names):
        error_rate = next(alias for alias in node.names if alias.name == "error_rate")
        if error_rate.asname or node not in edits.tree.body:
            raise UpgradeError(node, "error_rate is imported in an unusual way", "import it by its name, at the top")
        imports = [s for s in edits.tree.body if isinstance(s, (ast.Import, ast.ImportFrom))]
        end = edits.line_end(edits.end(imports[-1]))
        edits.replace(end, end, _ERROR_RATE)
    if lines:
        edits.replace_node(node, lines[0])
    else:
        edits.replace(edits.line_start(edits.start(node)), edits.line_end(edits.end(node)), "")


def _import_pedl(edits: ModuleEdits, node: ast.Import, context: str) -> None:
    if len(node.names) > 1 or node.names[0].name != "pedl" or node.names[0].asname or node not in edits.tree.body:
        raise UpgradeError(node, "pedl is imported in an unusual way", "write import pedl on a line at the top")
    for use in ast.walk(edits.tree):
        if isinstance(use, ast.Attribute) and isinstance(use.value, ast.Name) and use.value.id == "pedl":
            method = _method_around(edits, use)
            if use.attr not in _IN_CONTEXT or method is None or not context:
                raise UpgradeError(
                    use,
                    f"pedl.{use.attr} needs the trial's context here",
                    "ask the trial's context for it (get_hparam, get_data_config), and pass the value on",
                )
            edits.replace_node(use, f"{receiver(method)}.{context}.{_IN_CONTEXT[use.attr]}")
    edits.replace(edits.line_start(edits.start(node)), edits.line_end(edits.end(node)), "")


def _method_around(edits: ModuleEdits, node: ast.AST) -> ast.FunctionDef | None:
    """Return the method that holds the node, where it is one of a trial."""
    method = None
    parent = edits.parents.get(node)
    while parent is not None:
        if isinstance(parent, ast.FunctionDef):
            method = parent
        if isinstance(parent, ast.ClassDef):
            names = {s.name for s in parent.body if isinstance(s, ast.FunctionDef)}
            return method if names & {"train_batch", "build_model"} else None
        parent = edits.parents.get(parent)
    return None


def _drop(edits: ModuleEdits) -> None:
    """Take names out of their imports that nothing uses any more."""
    for node in edits.tree.body:
        if not isinstance(node, ast.ImportFrom) or (node.module or "").split(".")[0] != "determined":
            continue
        remove_names(edits, node, set(GONE))


def remove_names(edits: ModuleEdits, node: ast.ImportFrom, gone: Set[str]) -> None:
    """Take names out of an import, the whole of it where none is left."""
    names = node.names
    kept = [alias for alias in names if alias.name not in gone]
    if not kept:
        edits.replace(edits.line_start(edits.start(node)), edits.line_end(edits.end(node)), "")
        return
    for index, alias in enumerate(names):
        if alias.name not in gone:
            continue
        if index + 1 < len(names):
            edits.replace(edits.start(alias), edits.start(names[index + 1]), "")
        else:
            last = next(i for i in range(index - 1, -1, -1) if names[i].name not in gone)
            edits.replace(edits.end(names[last]), edits.end(alias), "")
