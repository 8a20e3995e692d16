"""Imports by a name of which only parts are written, and those whose failure something else is defined for."""

from __future__ import annotations

import re
from collections.abc import Iterable

import libcst as cst

from ds_migrate.plain.dataflow.scopes import Scopes
from ds_migrate.plain.dataflow.torch_names import SCALERS
from ds_migrate.plain.dataflow.values import NOTHING, Kind, Value, Values
from ds_migrate.syntax.nodes import dotted, imported_names, receiver, targets
from ds_migrate.syntax.source import SourceFile

_MOST = 30
_ANY = r"(?!__init__\b)[^/]*"


class ImportedModules:
    """The modules of a program, by the patterns of their names."""

    def __init__(self, files: Iterable[SourceFile]) -> None:
        self._files = list(files)

    def find(self, call: cst.Call, file: SourceFile, scopes: Scopes) -> Values:
        """Return the files that ``import_module("models." + name)`` may import; nothing where no part is written."""
        if not call.args or call.args[0].star:
            return NOTHING
        name = _pattern(call.args[0].value, file, scopes)
        folder = file.path.parent.as_posix() + "/" if name.startswith(r"\.") else ""
        name = name.removeprefix(r"\.").replace(r"\.", "/")
        if not re.search(r"\w", name.replace(_ANY, "")) and not folder:
            return NOTHING
        pattern = re.compile(rf"{re.escape(folder) or '(.*/)?'}{name}(/__init__)?\.py")
        found = [other for other in self._files if pattern.fullmatch(other.path.as_posix())]
        return frozenset(Value(Kind.FILE, id(other.module)) for other in found) if len(found) <= _MOST else NOTHING


def leading_text(node: cst.BaseExpression) -> str:
    """Return the text that an expression certainly begins with."""
    while isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Add):
        node = node.left
    if isinstance(node, cst.FormattedString):
        return node.parts[0].value if node.parts and isinstance(node.parts[0], cst.FormattedStringText) else ""
    if isinstance(node, cst.SimpleString) and isinstance(node.evaluated_value, str):
        return node.evaluated_value
    return re.split(r"\{\w*\}|%s", _template(node) or "")[0]


def _pattern(node: cst.BaseExpression, file: SourceFile, scopes: Scopes, depth: int = 3) -> str:
    """Return a regular expression for what a text may be."""
    if isinstance(node, cst.SimpleString) and isinstance(node.evaluated_value, str):
        return re.escape(node.evaluated_value)
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Add):
        return _pattern(node.left, file, scopes, depth) + _pattern(node.right, file, scopes, depth)
    if isinstance(node, cst.FormattedString):
        return "".join(
            re.escape(part.value) if isinstance(part, cst.FormattedStringText) else _ANY for part in node.parts
        )
    if isinstance(node, cst.Name) and depth:
        values = [
            line.value for line in scopes.nodes(node, cst.Assign, cst.AnnAssign)
            if line.value is not None and any(dotted(target) == node.value for target in targets(line))
        ]  # fmt: skip
        return _pattern(values[0], file, scopes, depth - 1) if len(values) == 1 else _ANY
    template = _template(node)
    return re.sub(r"%s|\\\{\w*\\\}", lambda _: _ANY, re.escape(template)) if template is not None else _ANY


def _template(node: cst.BaseExpression) -> str | None:
    """Return the text of ``"models.{}".format(name)`` and ``"models.%s" % name``."""
    text = receiver(node, "format")
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Modulo):
        text = node.left
    value = text.evaluated_value if isinstance(text, cst.SimpleString) else None
    return value if isinstance(value, str) else None


_IN_EACH_TORCH = SCALERS | {"torch.autocast", "torch.cuda.amp", "torch.cuda.amp.autocast", "torch.amp.autocast"}


def is_fallback(node: cst.CSTNode, file: SourceFile) -> bool:
    """Return whether a node handles an import that does not fail, as of ``torch.cuda.amp.GradScaler``."""
    inner: cst.CSTNode | None = None
    for outer in file.ancestors(node):
        if isinstance(outer, cst.Try) and isinstance(inner, cst.ExceptHandler) and _never_fails(outer.body):
            return True
        inner = outer
    return False


def _never_fails(block: cst.BaseSuite) -> bool:
    """Return whether a block only imports what each torch has that DeepSpeed runs with."""
    lines = [small for line in block.body if isinstance(line, cst.SimpleStatementLine) for small in line.body]
    return len(lines) >= len(block.body) and all(
        name in _IN_EACH_TORCH for line in lines for name in imported_names(line)
    )
