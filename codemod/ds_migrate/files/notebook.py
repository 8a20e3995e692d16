"""Notebooks as modules: the code cells of an ``.ipynb`` become one Python source and go back where they came from.

Lines that only IPython understands (``%magic``, ``!command``, ``name?``) travel as comments. Everything of the file but
the changed cells' ``source`` stays byte for byte.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

_CELL = "# %% ds-migrate cell "
_LINE = "# ds-migrate line: "
_PYTHON_CELL = re.compile(r"%%(time|timeit|capture|prun)\b")
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+')
_PASS = f"pass  {_LINE}"
_MAGIC = re.compile(r"\s*[%!?]|\s*\w+\s*=\s*[%!]|[^#]*\?\s*$")
_STATEMENT = re.compile(r"\s+[%!]\w")  # in a block, which must keep a statement


class NotebookError(ValueError):
    """It is no notebook."""


@dataclass(frozen=True)
class Notebook:
    """``text`` is the whole file. ``cells`` are the code cells: their index among all cells, their source, and where
    the JSON value of that source is in the text."""

    text: str
    cells: tuple[Cell, ...]

    @classmethod
    def parse(cls, data: bytes) -> Notebook:
        try:
            text = data.decode("utf-8")
            cells = json.loads(text)["cells"]
            spans = _source_spans(text)
            return cls(
                text,
                tuple(
                    Cell(index, _joined(cell["source"]), spans[index])
                    for index, cell in enumerate(cells)
                    if cell["cell_type"] == "code"
                ),
            )
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            raise NotebookError(f"is not a notebook of format 4: {reason}") from error

    def module(self) -> bytes:
        """The code cells as one module; each begins with a marker line."""
        parts: list[str] = []
        for cell in self.cells:
            lines = _hidden(cell.source.split("\n"))
            if cell.foreign:
                lines = [_LINE + line for line in cell.source.split("\n")]
            parts.append(f"{_CELL}{cell.index}\n" + "\n".join(lines) + "\n")
        return "".join(parts).encode()

    def written_trials(self) -> list[tuple[int, str]]:
        """Cells whose magic makes something else of a PyTorchTrial than code that runs here (``%%writefile model.py``):
        their first line in the module, and the magic."""
        found: list[tuple[int, str]] = []
        at = 1
        for cell in self.cells:
            if cell.foreign and "PyTorchTrial" in cell.source:
                found.append((at + 1, cell.source.split(maxsplit=1)[0]))
            at += cell.source.count("\n") + 2
        return found

    def with_module(self, module: bytes) -> bytes:
        """The notebook with its cells taken from a rewritten module. Raises ValueError when a cell got lost."""
        pieces = re.split(rf"^{re.escape(_CELL)}(\d+)\n", module.decode(), flags=re.M)
        if tuple(map(int, pieces[1::2])) != tuple(cell.index for cell in self.cells) or pieces[0].strip():
            raise ValueError("a cell got lost")
        text = self.text
        for cell, piece in reversed(list(zip(self.cells, pieces[2::2], strict=True))):
            new = "\n".join(_shown(line) for line in piece.removesuffix("\n").split("\n"))
            if new != cell.source:
                start, end = cell.span
                text = text[:start] + _value_like(text[start:end], new) + text[end:]
        return text.encode("utf-8")

    def locate(self, line: int) -> tuple[int, int]:
        """The cell (from 1, all kinds counted) and the line in it (from 1) of a line of the module."""
        at = 0
        for cell in self.cells:
            length = cell.source.count("\n") + 2
            if line <= at + length:
                return cell.index + 1, max(line - at - 1, 1)
            at += length
        return 1, 1


@dataclass(frozen=True)
class Cell:
    index: int
    source: str
    span: tuple[int, int]

    @property
    def foreign(self) -> bool:
        """Return whether the kernel does not run the cell as Python: another language's, or one that writes a file."""
        return self.source.startswith("%%") and _PYTHON_CELL.match(self.source) is None


def _joined(source: str | list[str]) -> str:
    return source if isinstance(source, str) else "".join(source)


def _source_spans(text: str) -> dict[int, tuple[int, int]]:
    """Return where the ``source`` value of each cell stands: {cell index: (start, end)}."""
    spans: dict[int, tuple[int, int]] = {}
    path: list[str | int] = []  # of the container that is open: keys and indices from the root
    key: str | int = ""
    expects_key = False
    for token in _TOKEN.finditer(text):
        value = token.group()
        inside = [*path, key]
        at_source = len(inside) == 4 and inside[1] == "cells" and inside[3] == "source"
        if value in "{[":
            if at_source:
                spans[int(inside[2])] = (token.start(), -1)
            path.append(key)
            key, expects_key = (0, False) if value == "[" else ("", True)
        elif value in "}]":
            key = path.pop()
            expects_key = False
            inside = [*path, key]
            if len(inside) == 4 and inside[1] == "cells" and inside[3] == "source":
                spans[int(inside[2])] = (spans[int(inside[2])][0], token.end())
        elif value == ",":
            if isinstance(key, int):
                key += 1
            else:
                expects_key = True
        elif value == ":":
            expects_key = False
        elif expects_key:
            key = json.loads(value)
        elif at_source:
            spans[int(inside[2])] = (token.start(), token.end())
    return spans


def _value_like(old: str, source: str) -> str:
    """A source as JSON, laid out as the old value was: one string, or a list with its own spacing."""

    def dump(text: str) -> str:
        return json.dumps(text, ensure_ascii=old.isascii() and "\\u" in old)

    if not old.startswith("["):
        return dump(source)
    strings = [m for m in _TOKEN.finditer(old) if m.group().startswith('"')]
    first = old[1 : strings[0].start()] if strings else ""
    last = old[strings[-1].end() : -1] if strings else ""
    between = (
        old[strings[0].end() : strings[1].start()] if len(strings) > 1 else "," + (first if "\n" in first else " ")
    )
    return "[" + first + between.join(dump(line) for line in source.splitlines(keepends=True)) + last + "]"


def _hidden(lines: Sequence[str]) -> list[str]:
    """Return the lines of a cell with IPython's own as comments, those that a backslash continues included."""
    result: list[str] = []
    continued = False
    for line in lines:
        magic = _MAGIC.match(line) is not None
        if not (continued or magic):
            result.append(line)
        elif _STATEMENT.match(line) and not continued:
            result.append(line[: len(line) - len(line.lstrip())] + _PASS + line)
        else:
            result.append(_LINE + line)
        continued = (continued or magic) and line.endswith("\\")
    return result


def _shown(line: str) -> str:
    own = line.lstrip()
    prefix = next((p for p in (_PASS, _LINE) if own.startswith(p)), None)
    return line if prefix is None else own.removeprefix(prefix)
