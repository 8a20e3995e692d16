"""The journal of the last runs, kept beside the project, so that ``--undo`` can take it back.

One JSON file a run, written before the first source file is touched, with the bytes each file had and the hash of what
was written. ``.ds-migrate/`` ignores itself in git. A project may come from a stranger, with a journal in it: no link
is followed, and an entry only reaches files of the project that holds it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import zlib
from collections.abc import Container, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from ds_migrate.files import git
from ds_migrate.files.regular_file import read_file

FOLDER = ".ds-migrate"
KEPT_RUNS = 20
_MOST_BYTES = 1 << 28  # of an entry, and of the files that it restores
_FORMAT = 1
_OTHERS_FILES = frozenset({".git", FOLDER})  # of these a run never writes any
_ENTRY = re.compile(r"\d{6,}\.json")


class JournalError(Exception):
    """The journal cannot be kept or read; the message says why and what to do."""


@dataclass(frozen=True)
class Change:
    """One file of a run: ``before`` is None when the run created it. ``path`` is absolute, links resolved."""

    path: Path
    before: bytes | None
    after_hash: str


@dataclass(frozen=True)
class Entry:
    """One run: where it is kept, and what it wrote."""

    file: Path
    changes: tuple[Change, ...]

    @property
    def description(self) -> str:
        """The run's number, project and time, for messages."""
        number, project = int(self.file.stem), self.file.parents[2]
        return f"run {number} in {project}, of {datetime.fromtimestamp(self.file.stat().st_mtime):%Y-%m-%d %H:%M}"

    def keep(self, written: Container[Path]) -> None:
        """Narrow the entry to the files that were written after all; without one, forget it. Raises OSError."""
        changes = tuple(change for change in self.changes if change.path in written)
        if not changes:
            self.forget()
        elif changes != self.changes:
            narrowed = self.file.with_suffix(".tmp")
            narrowed.unlink(missing_ok=True)
            _write_new(narrowed, _document(changes))
            narrowed.replace(self.file)

    def forget(self) -> None:
        """Remove the entry; the journal's folder goes with the last one. Never raises."""
        with suppress(OSError):
            self.file.unlink()
        home = self.file.parent
        with suppress(OSError):
            if not _entries(home):
                (home.parent / ".gitignore").unlink(missing_ok=True)
                home.rmdir()
                home.parent.rmdir()


def home_of(here: Path, written: Sequence[Path]) -> Path:
    """Return the folder that keeps the journal of a run started in ``here``: its git work tree, else ``here`` itself.

    Where that does not hold all written files or cannot be written, the same for the folder that these files share.
    Raises JournalError.
    """
    common = Path(os.path.commonpath([path.parent for path in written])) if written else here
    for folder in (here, common):
        for root in (Path(git.work_tree(str(folder)) or folder), folder):
            if common.is_relative_to(root) and os.access(root, os.W_OK):
                return root
    raise JournalError(
        f"no folder that holds all files to write, such as {common}, can be written, so nothing could be undone later: "
        f"convert projects in separate runs, in folders of your own"
    )


def record(root: Path, changes: Sequence[tuple[Path, bytes | None, bytes]]) -> Entry:
    """Keep (path, before, after) of every file a run is about to write. Raises JournalError."""
    home = root / FOLDER / "journal"
    kept = tuple(Change(path, before, fingerprint(after)) for path, before, after in changes)
    document = _document(kept)
    if max(len(document), sum(len(before or b"") for _path, before, _after in changes)) > _MOST_BYTES:
        raise JournalError(f"the files to write hold more than {_MOST_BYTES >> 20} MiB: convert them in several runs")
    try:
        home.mkdir(parents=True, exist_ok=True)
        known = _entries(home)
        with suppress(FileExistsError):  # O_EXCL follows no link
            _write_new(home.parent / ".gitignore", b"*\n")
        file = _create(home, int(known[-1].stem) + 1 if known else 1, document)
        for old in known[: max(0, len(known) + 1 - KEPT_RUNS)]:
            old.unlink(missing_ok=True)
    except OSError as error:
        raise JournalError(
            f"the journal {home} cannot be written ({error.strerror}), so nothing could be undone: make it writable"
        ) from error
    return Entry(file, kept)


def last_entry(folder: Path) -> Entry | None:
    """The newest run kept for ``folder``: in its work tree, or in a folder above if it wrote below ``folder``.

    ``folder`` is absolute with links resolved. Raises JournalError.
    """
    own = Path(git.work_tree(str(folder)) or folder)
    for place in (folder, *folder.parents):
        entries = _entries(place / FOLDER / "journal")
        if entries:
            entry = _read(entries[-1])
            if place.is_relative_to(own) or any(change.path.is_relative_to(folder) for change in entry.changes):
                return entry
    return None


def last_entry_of(path: Path) -> Entry | None:
    """Return the newest run that wrote ``path`` or below it, which is absolute with links resolved.

    Raises JournalError.
    """
    for place in (path, *path.parents):
        for file in reversed(_entries(place / FOLDER / "journal")):
            entry = _read(file)
            if any(change.path.is_relative_to(path) for change in entry.changes):
                return entry
    return None


def fingerprint(data: bytes) -> str:
    """The hash by which a file is known to be unchanged."""
    return hashlib.sha256(data).hexdigest()


def _entries(home: Path) -> list[Path]:
    """Return the entries, oldest first. Raises JournalError for a journal with links: it is not ours."""
    for path in (home.parent, home, home.parent / ".gitignore"):
        if path.is_symlink():
            raise JournalError(f"{path} is a symbolic link, which ds-migrate does not make: remove it")
    try:
        names = os.listdir(home)  # noqa: PTH208 - names, not paths
    except OSError:
        return []
    return [home / name for name in sorted(filter(_ENTRY.fullmatch, names), key=lambda name: (len(name), name))]


def _create(home: Path, number: int, data: bytes) -> Path:
    """Write the next free entry. Two runs at once get two numbers."""
    for candidate in _numbers(number):
        file = home / f"{candidate:06}.json"
        try:
            _write_new(file, data)
        except FileExistsError:
            continue
        return file
    raise AssertionError("numbers never end")


def _write_new(file: Path, data: bytes) -> None:
    """Write a file that does not exist yet, also not as a link. Raises OSError."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    with open(descriptor, "wb") as stream:  # noqa: PTH123 - a descriptor
        stream.write(data)
        stream.flush()
        os.fsync(descriptor)


def _numbers(start: int) -> Iterator[int]:
    while True:
        yield start
        start += 1


def _document(changes: Sequence[Change]) -> bytes:
    return json.dumps({"format": _FORMAT, "files": [_packed(change) for change in changes]}, indent=1).encode("ascii")


def _packed(change: Change) -> dict[str, Any]:
    before = None if change.before is None else base64.b64encode(zlib.compress(change.before)).decode("ascii")
    return {"path": str(change.path), "before": before, "after": change.after_hash}


def _read(file: Path) -> Entry:
    try:
        if file.lstat().st_size > _MOST_BYTES:
            raise ValueError(f"it has more than {_MOST_BYTES >> 20} MiB")
        document = json.loads(read_file(str(file), follow_links=False))
        if document["format"] != _FORMAT:
            raise JournalError(f"{file} was written by another version of ds-migrate: undo with that version")
        changes = tuple(_unpacked(document["files"], file.parents[2]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError, zlib.error) as error:
        raise JournalError(
            f"the journal entry {file} cannot be read ({error}): remove it to reach the run before"
        ) from error
    return Entry(file, changes)


def _unpacked(files: Sequence[dict[str, Any]], project: Path) -> Iterator[Change]:
    """Yield the changes. Raises ValueError for a file that is not one of the project, and for too much content."""
    room = _MOST_BYTES
    for packed in files:
        path, before, after = Path(packed["path"]), packed["before"], packed["after"]
        inside = path.parts[len(project.parts) :] if path.is_relative_to(project) else ()
        if os.path.realpath(path) != packed["path"] or not inside or not _OTHERS_FILES.isdisjoint(inside):
            raise ValueError(f"{path} is not a file of the project {project}")
        if not isinstance(after, str):
            raise TypeError("a hash is missing")
        data = None
        if before is not None:
            data = zlib.decompressobj().decompress(base64.b64decode(before, validate=True), room + 1)
            room -= len(data)
            if room < 0:
                raise ValueError(f"it holds more than {_MOST_BYTES >> 20} MiB")
        yield Change(path, data, after)
