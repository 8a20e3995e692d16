"""Folders that files of a project put on Python's search path, as ``sys.path.append("core")`` does."""

from __future__ import annotations

import ast
import os
from collections.abc import Collection, Iterator, Mapping

from ds_migrate.project.import_resolver import parent
from ds_migrate.syntax.parsing import parse_if_valid

_SHORT = 60  # lines of a file that does little else, as _init_paths.py


def added_folders(contents: Mapping[str, bytes], root: str) -> dict[str, list[str]]:
    """Return the folders that files put on the search path, by the folder of those files.

    Args:
        contents: of the project's files, by their absolute paths.
        root: the folder of the project, in which its programs may be started.
    """
    found: dict[str, list[str]] = {}
    known: set[str] | None = None
    for name, data in contents.items():
        if b"sys.path" not in data:
            continue
        known = known if known is not None else _folders(contents)
        folder = parent(name)
        for text in _texts(data):
            for base in (folder, root):
                path = os.path.normpath(f"{base}/{text}")
                is_above = folder == path or folder.startswith(f"{path}/")  # imports are looked for there anyway
                if path in known and not is_above and path not in found.setdefault(folder, []):
                    found[folder].append(path)
    return found


def _folders(names: Collection[str]) -> set[str]:
    """Return the folders of files, with those around them."""
    found: set[str] = set()
    for name in names:
        while (name := parent(name)) not in found and name != "/":
            found.add(name)
    return found


def _texts(data: bytes) -> Iterator[str]:
    """Yield the relative paths in what a module puts on the search path; any in a short one."""
    module = parse_if_valid(data)
    if module is None:
        return
    is_short = data.count(b"\n") < _SHORT
    assigned = {
        target.id: node.value
        for node in module.body if isinstance(node, ast.Assign)
        for target in node.targets if isinstance(target, ast.Name)
    }  # fmt: skip
    for node in ast.walk(module):
        if is_short and isinstance(node, ast.expr):
            yield from _paths(node)
        elif isinstance(node, ast.Call) and "sys.path" in ast.unparse(node.func):
            for part in ast.walk(node):
                yield from _paths(part)
                if isinstance(part, ast.Name) and part.id in assigned:
                    yield from (path for inner in ast.walk(assigned[part.id]) for path in _paths(inner))


def _paths(node: ast.AST) -> Iterator[str]:
    """Yield the path that a text is, or ``join`` makes of the texts at its end."""
    texts = node.args if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("join") else [node]
    path = "/".join(text.value for text in texts if isinstance(text, ast.Constant) and isinstance(text.value, str))
    if path:
        yield path
