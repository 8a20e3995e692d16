"""How nodes are printed: as libcst does it, without what libcst spends on positions that nobody asks for."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import libcst as cst
from libcst._nodes.internal import CodegenState

# One object for thousands of calls: entering a generator each time costs as much as all the rest of the printing.
NOTHING = nullcontext()


@dataclass
class PlainState(CodegenState):
    """Collects tokens."""

    def record_syntactic_position(  # type: ignore[override]  # any context manager does
        self, node: cst.CSTNode, **_: object
    ) -> AbstractContextManager[None]:
        """Called where a node's own text begins, past its comments and parentheses."""
        del node
        return NOTHING
