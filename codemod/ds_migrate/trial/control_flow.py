"""Control flow in a method: proof that a piece of it runs exactly once whenever the method does."""

from __future__ import annotations

import libcst as cst

from ds_migrate.syntax.source import SourceFile

# What runs its insides more than once, later, or not at all.
_SOMETIMES = (
    cst.If, cst.IfExp, cst.Match, cst.Try, cst.TryStar, cst.BooleanOperation,
    cst.For, cst.While, cst.ListComp, cst.SetComp, cst.DictComp, cst.GeneratorExp,
    cst.Lambda, cst.FunctionDef, cst.ClassDef,
)  # fmt: skip


def runs_once(file: SourceFile, node: cst.CSTNode, function: cst.FunctionDef) -> bool:
    """Return whether ``node``, in the body of ``function``, is evaluated once in each call that does not raise."""
    for ancestor in file.ancestors(node):
        if ancestor is function:
            return not returns_before(file, node, function)
        if isinstance(ancestor, _SOMETIMES):
            return False
    return False


def returns_before(file: SourceFile, node: cst.CSTNode, function: cst.FunctionDef) -> bool:
    """Return whether the function may return before ``node`` is reached (in a ``return`` it is still reached)."""
    position, around = file.position(node), set(file.ancestors(node))
    return any(
        n not in around and file.position(n) < position and file.function(n) is function
        for n in file.nodes(cst.Return, below=function)
    )
