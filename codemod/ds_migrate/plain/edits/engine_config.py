"""The DeepSpeed config of an engine: a dict in the code, or a JSON file to which the code adds what it alone knows."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping

Path = tuple[str, ...]  # the keys that lead to a value


def dict_lines(config: Mapping[str, str]) -> list[str]:
    """Return the lines of a dict, given the expression of each key's value."""
    return ["{", *(f'        "{key}": {value},' for key, value in config.items()), "    }"]


def divide(config: Mapping[str, str]) -> tuple[str, list[tuple[Path, str]]]:
    """Return the text of a JSON file with what is known before the program runs, and the expressions of the rest."""
    known: dict[str, object] = {}
    computed: list[tuple[Path, str]] = []
    for key, text in config.items():
        _put(known, (key,), text, ast.parse(text, mode="eval").body, computed)
    return json.dumps(known, indent=4) + "\n", computed


def _put(known: dict[str, object], path: Path, source: str, node: ast.expr, computed: list[tuple[Path, str]]) -> None:
    if isinstance(node, ast.Dict):
        below: dict[str, object] = {}
        known[path[-1]] = below
        for key, value in _pairs(node):
            _put(below, (*path, key), source, value, computed)
        return
    try:
        known[path[-1]] = ast.literal_eval(node)
    except ValueError:
        computed.append((path, ast.get_source_segment(source, node) or ast.unparse(node)))


def _pairs(node: ast.Dict) -> Iterator[tuple[str, ast.expr]]:
    for key, value in zip(node.keys, node.values, strict=True):
        assert isinstance(key, ast.Constant) and isinstance(key.value, str)
        yield key.value, value
