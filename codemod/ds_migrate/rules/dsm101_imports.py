"""Rename imports and names of Determined's library to those of the target."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from ds_migrate.conversion.rule_context import RuleContext
from ds_migrate.decisions.engine_layout import is_on_library_base
from ds_migrate.rules import unserved_names
from ds_migrate.rules.codes import Code
from ds_migrate.rules.model_hub_imports import convert_model_hub
from ds_migrate.syntax.nodes import code, dotted, walk
from ds_migrate.syntax.source import SourceFile
from ds_migrate.targets import DEEPSPEED_MODULE, MOVED, in_library

CODE = Code.IMPORTS


def apply_file(file: SourceFile, context_names: Sequence[RuleContext]) -> None:
    ctx = context_names[0]
    _references(ctx, file)
    _annotations(ctx, file)
    for node in file.names.import_nodes:
        if file.stays(node):
            continue
        if isinstance(node, cst.Import):
            _module_import(ctx, file, node)
        else:
            _from_import(ctx, file, node)
    _deepspeed_import(ctx, file)
    if any(is_on_library_base(other.trial) for other in context_names):
        convert_model_hub(ctx, file)


def _references(ctx: RuleContext, file: SourceFile) -> None:
    """Rename every use of a moved name, and report every use of a name that the target lacks or refuses."""
    imported = {inner for n in file.names.import_nodes for inner in walk(n)}
    bindings = file.names.bindings
    for name in file.nodes(cst.Name):
        if not in_library(bindings.get(name.value, name.value)) or name in imported:
            continue
        node = _whole_chain(file, name)
        qualified = file.names.qualified(node)
        if node is None or qualified is None or "." not in qualified:
            continue
        known, rest = _split(qualified)
        if known in MOVED and _is_hint_for_both(file, node):
            continue
        if known in MOVED:
            new = ctx.deepspeed_name(file, MOVED[known]) + rest
            if new != dotted(node):
                file.replace(node, new)
        elif not ctx.target.has(qualified):
            unserved_names.keep(ctx, file, name, node, qualified)
        else:
            unserved_names.review_refused(ctx, file, node, qualified)


def _is_hint_for_both(file: SourceFile, node: cst.CSTNode) -> bool:
    """Return whether an annotation is in code that a trial needs which stays: it is right for one of the two."""
    return not file.may_change(node) and any(isinstance(a, cst.Annotation) for a in file.ancestors(node))


def _whole_chain(file: SourceFile, name: cst.Name) -> cst.CSTNode | None:
    """Return the ``a.b.c`` that begins with the name; None for the name of an attribute, keyword or definition."""
    node: cst.CSTNode = name
    parent = file.parent(node)
    while isinstance(parent, cst.Attribute):
        if parent.attr is name:
            return None
        node, parent = parent, file.parent(parent)
    if isinstance(parent, cst.Arg):
        return None if parent.keyword is node else node
    if isinstance(parent, (cst.Param, cst.ClassDef, cst.FunctionDef)):
        return None if parent.name is node else node
    if isinstance(parent, cst.AssignTarget) and node is name:
        return None
    return node


def _split(qualified: str) -> tuple[str, str]:
    """Return a moved name and what is taken from it: ``determined.pytorch.PyTorchTrial`` and ``.train_batch``."""
    for known in MOVED:
        if qualified == known or qualified.startswith(known + "."):
            return known, qualified[len(known) :]
    return qualified, ""


def _annotations(ctx: RuleContext, file: SourceFile) -> None:
    """Rename moved names in quoted annotations and in quoted parts of annotations."""
    for node in file.nodes(cst.Annotation):
        for text in file.nodes(cst.SimpleString, below=node) if file.may_change(node) else ():
            quoted = _moved_in_quotes(ctx, file, text)
            if quoted is not None:
                file.replace(text, cst.SimpleString(f"{text.quote}{quoted}{text.quote}"))


def _moved_in_quotes(ctx: RuleContext, file: SourceFile, text: cst.SimpleString) -> str | None:
    """Return what is in the quotes with its moved names in the target's spelling; None when there are none."""
    try:
        inner = cst.parse_expression(text.raw_value)
    except cst.ParserSyntaxError:
        return None
    moved = [n for n in walk(inner) if isinstance(n, (cst.Name, cst.Attribute)) and file.names.qualified(n) in MOVED]
    for node in moved:
        new = ctx.deepspeed_name(file, MOVED[file.names.qualified(node) or ""])
        inner = node_replaced(inner, node, cst.parse_expression(new))
    return code(inner) if moved else None


def node_replaced(tree: cst.BaseExpression, old: cst.CSTNode, new: cst.BaseExpression) -> cst.BaseExpression:
    found = new if tree is old else tree.deep_replace(old, new)
    assert isinstance(found, cst.BaseExpression)
    return found


def _module_import(ctx: RuleContext, file: SourceFile, node: cst.Import) -> None:
    for alias in node.names:
        name = dotted(alias.name) or ""
        if not in_library(name):
            continue
        if not ctx.target.has(name):
            _drop(ctx, file, node, alias, name)
            continue
        new = ctx.target.module(name)
        if new == name:
            continue
        file.replace(alias.name, new)
        ctx.converted(CODE, file, node, f"the import comes from {new}, which has the same names")
        if alias.asname is None:
            package = name.split(".")[0]
            _rename_package(file, package, ctx.target.module(package))


def _rename_package(file: SourceFile, package: str, new: str) -> None:
    """Rename every use of ``determined`` or ``determined_common``, the name that its import binds."""
    imports = {inner for n in file.names.import_nodes for inner in walk(n)}
    for node in file.nodes(cst.Name):
        if node.value != package or node in imports:
            continue
        parent = file.parent(node)
        if isinstance(parent, cst.Attribute) and parent.attr is node:
            continue
        if file.edits.once(node, CODE) and not _inside_moved(file, node):
            file.replace(node, new)


def _inside_moved(file: SourceFile, node: cst.CSTNode) -> bool:
    for ancestor in file.ancestors(node):
        if not isinstance(ancestor, cst.Attribute):
            return False
        if _split(file.names.qualified(ancestor) or "")[0] in MOVED:
            return True
    return False


def _from_import(ctx: RuleContext, file: SourceFile, node: cst.ImportFrom) -> None:
    module = dotted(node.module) or ""
    if node.relative or not in_library(module) or unserved_names.is_left(ctx, file, node):
        return
    if isinstance(node.names, cst.ImportStar):
        ctx.blocked(
            CODE, file, node, f"from {module} import * hides which names are used", "import the names that are used"
        )
        return
    gone: set[cst.ImportAlias] = set()
    for alias in node.names:
        qualified = f"{module}.{dotted(alias.name)}"
        if qualified in MOVED:
            gone.add(alias)
        elif not ctx.target.has(qualified):
            gone.add(alias)  # a use imports it, see unserved_names
            if not _used(file, _bound(alias)):
                ctx.converted(CODE, file, alias, f"{qualified} was not used")
    new = ctx.target.module(module)
    line = file.statement(node)
    if len(gone) == len(node.names):
        target = line if isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1 else node
        file.remove(target)
        return
    if new != module and node.module is not None:
        file.replace(node.module, new)
    if gone:
        file.change(node, lambda updated: _without(updated, {i for i, a in enumerate(node.names) if a in gone}))  # type: ignore[arg-type]
    ctx.converted(CODE, file, node, f"the import comes from {new}, which has the same names")


def _without(updated: cst.CSTNode, indices: set[int]) -> cst.CSTNode:
    """Return the import without some of its names; layout and trailing comma as they were."""
    assert isinstance(updated, cst.ImportFrom) and not isinstance(updated.names, cst.ImportStar)
    kept = [a for i, a in enumerate(updated.names) if i not in indices]
    last = updated.names[-1]
    if kept[-1] is not last:
        kept[-1] = kept[-1].with_changes(comma=last.comma)
    return updated.with_changes(names=kept)


def _drop(ctx: RuleContext, file: SourceFile, node: cst.Import, alias: cst.ImportAlias, name: str) -> None:
    """Remove the import of a module that the target lacks; a use imports it, see ``unserved_names``."""
    if len(node.names) > 1 or unserved_names.is_left(ctx, file, node):
        return
    bound = name.split(".")[0] if alias.asname is None else _bound(alias)
    line = file.statement(node)
    file.remove(line if isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1 else node)
    if not _used(file, bound):
        ctx.converted(CODE, file, node, f"{name} was not used")


def _bound(alias: cst.ImportAlias) -> str:
    name = alias.asname.name if alias.asname is not None else alias.name
    return dotted(name) or ""


def _used(file: SourceFile, name: str) -> bool:
    imports = {inner for n in file.names.import_nodes for inner in walk(n)}
    for node in walk(file.module):
        if isinstance(node, cst.Name) and node.value == name and node not in imports:
            parent = file.parent(node)
            if not (isinstance(parent, cst.Attribute) and parent.attr is node):
                return True
        if isinstance(node, cst.SimpleString) and name in node.value and isinstance(file.parent(node), cst.Annotation):
            return True
    return False


def _deepspeed_import(ctx: RuleContext, file: SourceFile) -> None:
    """Import the names that rules requested from the deepspeed module, after the file's determined imports."""
    wanted = ctx.deepspeed_imports.get(file)
    if not wanted:
        return
    module = ctx.target.module(DEEPSPEED_MODULE)
    names = ", ".join(n if n == b else f"{n} as {b}" for n, b in sorted(wanted.items()) if n)
    alias = wanted.get("")
    text = f"from {module} import {names}" if names else ""
    if len(text) > min(100, file.width):
        rows = ",\n    ".join(names.split(", "))
        text = f"from {module} import (\n    {rows},\n)"
    if alias:
        head, _, tail = module.rpartition(".")
        text = "\n".join(filter(None, [f"from {head} import {tail} as {alias}", text]))
    anchors = [
        n
        for n in file.names.import_nodes
        if (isinstance(n, cst.ImportFrom) and not n.relative and (dotted(n.module) or "").split(".")[0] == "determined")
        or (isinstance(n, cst.Import) and (dotted(n.names[0].name) or "").split(".")[0] == "determined")
    ]
    body = file.module.body
    classes = next((index for index, s in enumerate(body) if isinstance(s, cst.ClassDef)), len(body))
    lines = [s for n in anchors if (s := file.statement(n)) in body[:classes]]
    if lines:
        file.after(lines[-1], text)
    else:
        file.imports.insert(text, module, True)
