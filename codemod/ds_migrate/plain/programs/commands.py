"""The functions that a project installs as commands, which are called by none of its files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from ds_migrate.project.import_resolver import ImportResolver

_METADATA = ("pyproject.toml", "setup.cfg", "setup.py")
_ENTRY = re.compile(rb"=\s*[\"']?([A-Za-z_][\w.]*):([A-Za-z_]\w*)")  # train = "package.cli:main", in each of these

Command = tuple[Path, str]  # the module that is imported, and the name of the function there


def find_commands(
    root: Path, modules: Iterable[Path], read: Callable[[Path], bytes | None], resolver: ImportResolver
) -> tuple[Command, ...]:
    """Return the commands that the metadata of packages below a folder names."""
    folders = {folder for module in modules for folder in module.parents if folder.is_relative_to(root)}
    found = (command for folder in sorted(folders) for command in _commands_of(folder, read, resolver))
    return tuple(dict.fromkeys(found))


def _commands_of(folder: Path, read: Callable[[Path], bytes | None], resolver: ImportResolver) -> Iterator[Command]:
    for path in (folder / name for name in _METADATA):
        for module, function in _ENTRY.findall(read(path) or b""):
            found = resolver.resolve_name(str(path), module.decode(), "")
            if found is not None:
                yield Path(found), function.decode()
