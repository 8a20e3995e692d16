"""Print a module as libcst does: its text, the position of each node in it, and its text once it is rewritten."""

from __future__ import annotations

import re
from bisect import bisect_right
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import libcst as cst
from libcst._nodes.internal import CodegenState

_NEWLINE = re.compile("\r\n|\r|\n")
# One object for thousands of calls: entering a generator each time costs as much as all the rest of the printing.
_NOTHING = nullcontext()


@dataclass
class PlainState(CodegenState):
    """The tokens of what is printed, without the positions that libcst records at a cost."""

    def record_syntactic_position(  # type: ignore[override]  # any context manager does
        self, node: cst.CSTNode, **_: object
    ) -> AbstractContextManager[None]:
        """Ignore where a node's own text begins, past its comments and parentheses."""
        del node
        return _NOTHING


class ModuleText:
    """The text of a module, to compare with the file, and the position of every node in it: one pass for both."""

    def __init__(self, module: cst.Module) -> None:
        state = _State(default_indent=module.default_indent, default_newline=module.default_newline)
        module._codegen(state)
        self.text = "".join(state.tokens)
        self._module = module
        self._state = state
        self._offsets = list(accumulate(map(len, state.tokens), initial=0))
        self._lines = [0, *(newline.end() for newline in _NEWLINE.finditer(self.text))]

    def position(self, node: cst.CSTNode) -> tuple[int, int]:
        """Return line and column of the node's first token, both from 1; (1, 1) for a node of another tree."""
        begin = self._state.begins.get(id(node), 0)
        offset = self._offsets[self._state.starts.get(id(node), begin)]
        line = bisect_right(self._lines, offset)
        return line, offset - self._lines[line - 1] + 1

    def rewritten(self, module: cst.Module) -> str:
        """Return the text of a module made from this one.

        The tokens of a statement that is still the same object, as most are, are copied and not printed again.
        """
        copies: dict[int, _Copy] = {}
        self._collect(copies, self._module, None, [])
        state = PlainState(default_indent=module.default_indent, default_newline=module.default_newline)
        _with_copies(copies, module)._codegen(state)
        return "".join(state.tokens)

    def _collect(self, copies: dict[int, _Copy], block: Any, end: int | None, indent: list[str]) -> None:
        """Keep each statement of the block up to the next one; ``end`` is where the last one ends, if that is known."""
        begins = [self._state.begins[id(node)] for node in (*block.body, *block.footer[:1])]
        for statement, begin, stop in zip(block.body, begins, [*begins[1:], end], strict=False):
            if stop is not None:
                copies[id(statement)] = _Copy(statement, self._state.tokens[begin:stop], indent)
            inner = getattr(statement, "body", None)
            if isinstance(inner, cst.IndentedBlock):
                deeper = [*indent, self._module.default_indent if inner.indent is None else inner.indent]
                ends_with_it = isinstance(statement, (cst.FunctionDef, cst.ClassDef))
                self._collect(copies, inner, stop if ends_with_it else None, deeper)


class _Copy:
    """A placeholder for a statement, printed by copying its tokens."""

    def __init__(self, statement: cst.CSTNode, tokens: list[str], indent: list[str]) -> None:
        self._statement, self._tokens, self._indent = statement, tokens, indent

    def _codegen(self, state: CodegenState) -> None:
        if state.indent_tokens == self._indent:
            state.tokens += self._tokens
        else:  # it moved to another depth
            self._statement._codegen(state)


def _with_copies(copies: dict[int, _Copy], block: Any) -> Any:
    """Return the module or block with copies for the statements that have one, at any depth."""
    body: list[Any] = []
    for statement in block.body:
        inner = getattr(statement, "body", None)
        if id(statement) in copies:
            body.append(copies[id(statement)])
        elif isinstance(inner, cst.IndentedBlock):
            body.append(statement.with_changes(body=_with_copies(copies, inner)))
        else:
            body.append(statement)
    return block.with_changes(body=body)


@dataclass
class _State(PlainState):
    """The number of tokens before each node, by its identity: ``begins`` with its comments and parentheses,
    ``starts`` without, where that makes a difference."""

    def __post_init__(self) -> None:
        self.begins: dict[int, int] = {}
        self.starts: dict[int, int] = {}

    def before_codegen(self, node: cst.CSTNode) -> None:
        self.begins[id(node)] = len(self.tokens)

    def record_syntactic_position(  # type: ignore[override]  # any context manager does
        self, node: cst.CSTNode, **_: object
    ) -> AbstractContextManager[None]:
        self.starts[id(node)] = len(self.tokens)
        return _NOTHING
