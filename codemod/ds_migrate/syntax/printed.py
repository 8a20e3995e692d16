"""A module as libcst prints it, and where in the text each node starts."""

from __future__ import annotations

import re
from bisect import bisect_right
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import accumulate

import libcst as cst
from libcst._nodes.internal import CodegenState

_NEWLINE = re.compile("\r\n|\r|\n")


class Printed:
    """One pass gives both: the text, to be held against the file, and the positions."""

    def __init__(self, module: cst.Module) -> None:
        state = _State(default_indent=module.default_indent, default_newline=module.default_newline)
        module._codegen(state)
        self.text = "".join(state.tokens)
        self._starts = state.starts
        self._offsets = list(accumulate(map(len, state.tokens), initial=0))
        self._lines = [0, *(newline.end() for newline in _NEWLINE.finditer(self.text))]

    def position(self, node: cst.CSTNode) -> tuple[int, int]:
        """Line and column of the node's first token, both from 1; (1, 1) for a node of another tree."""
        offset = self._offsets[self._starts.get(id(node), 0)]
        line = bisect_right(self._lines, offset)
        return line, offset - self._lines[line - 1] + 1


@dataclass
class _State(CodegenState):
    """``starts``: by the identity of a node, the number of tokens before it."""

    def __post_init__(self) -> None:
        self.starts: dict[int, int] = {}

    def before_codegen(self, node: cst.CSTNode) -> None:
        self.starts[id(node)] = len(self.tokens)

    def record_syntactic_position(  # type: ignore[override]  # any context manager does
        self,
        node: cst.CSTNode,
        *,
        start_node: cst.CSTNode | None = None,
        end_node: cst.CSTNode | None = None,
    ) -> AbstractContextManager[None]:
        """Called where a node's own text begins, past its comments and parentheses."""
        del start_node, end_node
        self.starts[id(node)] = len(self.tokens)
        return _NOTHING


# One object for thousands of calls: entering a generator each time costs more than all the printing.
_NOTHING = nullcontext()
