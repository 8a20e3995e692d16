"""Handlers of imports that do not fail: code for a torch that is too old for DeepSpeed, which does not run."""

from __future__ import annotations

import libcst as cst

from ds_migrate.plain.dataflow.torch_names import SCALERS
from ds_migrate.syntax.nodes import imported_names
from ds_migrate.syntax.source import SourceFile

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
