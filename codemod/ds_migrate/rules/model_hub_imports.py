"""Rename imports and names of ``model_hub`` in files of a trial that is built on its base class (part of DSM101)."""

from __future__ import annotations

import libcst as cst

from ds_migrate.conversion.rule_context import RuleContext
from ds_migrate.names import Verdict, row_of, served_at
from ds_migrate.project.library_bases import TRANSFORMER_TRIAL, TRANSFORMER_TRIALS
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import dotted, walk
from ds_migrate.syntax.source import SourceFile

CODE = Code.IMPORTS

_PACKAGE = "model_hub"
# Modules of the package that its users had no reason to name: what they hold is in the package above.
_INNER = ("._trial", "._config_parser", "._utils")


def convert_model_hub(ctx: RuleContext, file: SourceFile) -> None:
    """Replace the prefix of what the file imports from ``model_hub``, and its base class by the one with an engine."""
    imported = {inner for node in file.names.import_nodes for inner in walk(node)}
    plain = False  # import model_hub.huggingface: uses begin with the package's own name
    for node in file.names.import_nodes:
        if isinstance(node, cst.Import):
            for alias in node.names:
                plain |= _module_import(ctx, file, node, alias)
        else:
            _from_import(ctx, file, node)
    for name in file.nodes(cst.Name):
        if name in imported or file.names.bindings.get(name.value, "").partition(".")[0] != _PACKAGE:
            continue
        if isinstance(around := file.parent(name), cst.Attribute) and around.attr is name:
            continue
        if isinstance(around, (cst.Param, cst.ClassDef, cst.FunctionDef)) and around.name is name:
            continue
        _reference(ctx, file, name, plain)


def _module_import(ctx: RuleContext, file: SourceFile, node: cst.Import, alias: cst.ImportAlias) -> bool:
    """Convert ``import model_hub.x``; return whether it binds ``model_hub``."""
    name = dotted(alias.name) or ""
    if name.partition(".")[0] != _PACKAGE:
        return False
    if name != _PACKAGE and not _is_served(ctx, file, alias, name):
        return False
    new = _module(ctx, name)
    file.replace(alias.name, new)
    ctx.converted(CODE, file, node, f"the import comes from {new}, which has the same names")
    return alias.asname is None


def _from_import(ctx: RuleContext, file: SourceFile, node: cst.ImportFrom) -> None:
    module = dotted(node.module) or ""
    if node.relative or node.module is None or module.partition(".")[0] != _PACKAGE:
        return
    if isinstance(node.names, cst.ImportStar):
        ctx.blocked(
            CODE, file, node, f"from {module} import * hides which names are used", "import the names that are used"
        )
        return
    for alias in node.names:
        qualified = f"{module}.{dotted(alias.name)}"
        if not _is_served(ctx, file, alias, qualified):
            return
        if qualified in TRANSFORMER_TRIALS:
            file.replace(alias.name, _deepspeed_trial())
    new = _module(ctx, module)
    file.replace(node.module, new)
    ctx.converted(CODE, file, node, f"the import comes from {new}, which has the same names")


def _reference(ctx: RuleContext, file: SourceFile, name: cst.Name, plain: bool) -> None:
    """Rename the base class where the file takes it from a module or under its own name, and the package itself."""
    node: cst.CSTNode = name
    while isinstance(around := file.parent(node), cst.Attribute) and around.value is node:
        if file.names.qualified(node) in TRANSFORMER_TRIALS:
            break
        node = around
    qualified = file.names.qualified(node) or ""
    prefix = f"{ctx.target.package}." if plain and name.value == _PACKAGE else ""
    if qualified not in TRANSFORMER_TRIALS:
        if prefix:
            file.replace(name, prefix + _PACKAGE)
        if node is not name:
            _is_served(ctx, file, node, qualified)
    elif isinstance(node, cst.Attribute):
        head = (dotted(node.value) or "").removesuffix("._trial")
        file.replace(node, f"{prefix}{head}.{_deepspeed_trial()}")
    elif name.value == TRANSFORMER_TRIAL:
        file.replace(node, _deepspeed_trial())


def _is_served(ctx: RuleContext, file: SourceFile, node: cst.CSTNode, qualified: str) -> bool:
    """Return whether the target has a name or module; report it if not."""
    public = _public(qualified)
    row = row_of(public)
    if public == _PACKAGE or (row is not None and row.verdict in (Verdict.PROVIDE, Verdict.CONVERT)):
        return True
    ctx.blocked(
        CODE, file, node, f"{qualified} has no counterpart in {ctx.target.package}",
        row.advice if row is not None else "remove the use, or copy the function into the project",
    )  # fmt: skip
    return False


def _module(ctx: RuleContext, name: str) -> str:
    return f"{ctx.target.package}.{_public(name)}"


def _public(name: str) -> str:
    """Return a name of an inner module as one of the package above it."""
    for inner in _INNER:
        name = name.replace(f"{inner}.", ".").removesuffix(inner)
    return name


def _deepspeed_trial() -> str:
    return (served_at(TRANSFORMER_TRIALS[0]) or "").rpartition(".")[2]
