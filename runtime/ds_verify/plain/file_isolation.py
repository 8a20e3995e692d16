"""Files that a script would overwrite: in a working copy they are links, which are replaced before they are written.

Code and configs are copied; data, checkpoints and the like are links. A script writes: it saves weights where it saved
them yesterday. A link that is opened for writing becomes a file of the working copy first.
"""

from __future__ import annotations

import itertools
import os
import shutil
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

MANY = 2000
"""A folder with more entries is data, which stays one link."""

_MOST = 20_000
"""Links that are made at most."""
_WRITES = os.O_WRONLY | os.O_RDWR


def open_folders(copy: Path) -> None:
    """Turn links to folders below `copy` into folders of links, so that new files stay in the copy.

    Folders of data stay links, and so does what leads back to a folder around it, or to far too many files.
    """
    links = [Path(folder, name) for folder, names, files in os.walk(copy) for name in (*names, *files)]
    left = _MOST
    for link in links:
        if link.is_symlink() and link.is_dir():
            left = _open(link, left, ())


def _open(link: Path, left: int, above: tuple[Path, ...]) -> int:
    """Open a link unless it leads to more than so many entries; return how many are left for others."""
    source = link.resolve()
    if source in above or not os.access(source, os.R_OK | os.X_OK):
        return left
    entries = list(itertools.islice(source.iterdir(), MANY + 1))
    if len(entries) > min(MANY, left) or link.is_relative_to(source):
        return left
    left -= len(entries)
    link.unlink()
    link.mkdir()
    for entry in entries:
        (link / entry.name).symlink_to(entry.resolve())
        if entry.is_dir():
            left = _open(link / entry.name, left, (*above, source))
    return left


def guard_links(copy: Path) -> None:
    """Copy what a link below `copy` leads to when it is opened for writing; for the life of this process."""

    def on_event(event: str, arguments: Any) -> None:
        if event != "open" or not isinstance(arguments[0], str | bytes | os.PathLike):
            return
        if isinstance(arguments[2], int) and arguments[2] & _WRITES:
            detach(Path(os.fsdecode(arguments[0])), copy)

    sys.addaudithook(on_event)


def detach(path: Path, copy: Path) -> None:
    """Replace a link below `copy` by a copy of the file that it leads to."""
    place = Path(os.path.abspath(path))  # noqa: PTH100  # resolve() would follow the link
    if place.is_symlink() and place.is_relative_to(copy) and place.is_file():
        target = place.resolve()
        place.unlink()
        shutil.copyfile(target, place)


def module_outside(source: str, before: Collection[str]) -> str:
    """Return which module was imported from a project itself, in the place of its copy; empty where none was.

    Both sides would use it as it is, and what a conversion changes in it would not be compared.

    Args:
        source: the project's folder; empty where it is not known.
        before: names of modules that were imported before the script.
    """
    for name, module in sorted(sys.modules.items()) if source else ():
        file = Path(getattr(module, "__file__", None) or os.sep)
        if name not in before and file.is_relative_to(source) and not is_installed(file):
            return f"{name} is imported from {file}"
    return ""


def is_installed(path: Path) -> bool:
    """Return whether a path is of an environment of Python, which may be in the project's folder."""
    return path.is_relative_to(sys.prefix) or bool({"site-packages", "dist-packages"} & set(path.parts))
