"""Keep sorted imports sorted: a renamed package has another place in the alphabet."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

Statement = ast.Import | ast.ImportFrom
Order = Callable[[Statement], tuple[bool, bool, int, str]]

# A statement that is no import and ends the first imports; or a line of a string, and what is above does not parse.
_AFTER_IMPORTS = re.compile(rb"^(?:@|(?:def|class|if|for|while|with|try|async)\b)", re.MULTILINE)
# What ends with an error behind torch, which deepspeed imports.
_BEFORE_TORCH = re.compile(rb"^(?:import|from) (?:isaacgym|juliacall)\b", re.MULTILINE)


def sort_like(before: bytes, after: bytes) -> bytes:
    """Return the converted file with each block of imports sorted as every block of the original was, where it was.

    Not where a module must come before torch. A block is what is on consecutive lines at the top level. Both files must
    parse.
    """
    order = _order_of(before)
    if order is None or _BEFORE_TORCH.search(before):
        return after
    lines = after.splitlines(keepends=True)
    for block in _blocks(after):
        texts = [b"".join(lines[s.lineno - 1 : s.end_lineno]) for s in sorted(block, key=order)]
        first, last = block[0].lineno - 1, block[-1].end_lineno
        if all(text.endswith((b"\n", b"\r")) for text in texts):
            lines[first:last] = [b"".join(texts), *[b""] * ((last or 0) - first - 1)]
    return b"".join(lines)


def _order_of(data: bytes) -> Order | None:
    """Return the order of every block: plain imports first, or by module alone; None where some block has neither."""
    blocks = list(_blocks(data))
    if not any(len(block) > 1 for block in blocks):
        return None
    orders: tuple[Order, ...] = (_plain_first, _by_module)
    return next((o for o in orders if all(o(a) <= o(b) for block in blocks for a, b in pairwise(block))), None)


def _plain_first(statement: Statement) -> tuple[bool, bool, int, str]:
    is_late, _, level, name = _by_module(statement)
    return is_late, isinstance(statement, ast.ImportFrom), level, name


def _by_module(statement: Statement) -> tuple[bool, bool, int, str]:
    if isinstance(statement, ast.Import):
        return True, False, 0, statement.names[0].name.lower()
    return statement.module != "__future__", False, -statement.level, (statement.module or "").lower()


def _blocks(data: bytes) -> Iterator[Sequence[Statement]]:
    """Yield the imports at the top of the file that are on consecutive lines, each alone on its lines."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in other people's strings
        try:
            body = ast.parse(_AFTER_IMPORTS.split(data, maxsplit=1)[0]).body  # most files are nearly all below
        except SyntaxError:
            body = ast.parse(data).body
    block: list[Statement] = []
    last = 0
    for statement in body:
        is_docstring = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if not isinstance(statement, Statement) and not is_docstring:
            break
        joins = bool(block) and statement.lineno == last + 1
        if not joins and block:
            yield block
            block = []
        if isinstance(statement, Statement) and statement.lineno != last:
            block.append(statement)
        last = -1 if is_docstring else statement.end_lineno or statement.lineno
    if block:
        yield block
