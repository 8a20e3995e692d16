"""What the last runs wrote, kept beside the project, so that ``--undo`` can take it back.

One JSON file a run, written before the first source file is touched, with the bytes each file had and the hash of what
was written. ``.ds-migrate/`` ignores itself in git.
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
_FORMAT = 1
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
            narrowed.write_bytes(_document(changes))
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
    """The folder that keeps the journal of a run started in ``here``: its git work tree, else ``here`` itself.

    Where that cannot be written, the same for the folder that all written files share. Raises JournalError.
    """
    common = Path(os.path.commonpath([path.parent for path in written])) if written else here
    for folder in (here, common):
        root = Path(git.work_tree(str(folder)) or folder)
        if os.access(root, os.W_OK):
            return root
    raise JournalError(
        f"neither {here} nor {common} can be written, so nothing could be undone later: run in a folder of your own"
    )


def record(root: Path, changes: Sequence[tuple[Path, bytes | None, bytes]]) -> Entry:
    """Keep (path, before, after) of every file a run is about to write. Raises JournalError."""
    home = root / FOLDER / "journal"
    kept = tuple(Change(path, before, fingerprint(after)) for path, before, after in changes)
    try:
        home.mkdir(parents=True, exist_ok=True)
        (home.parent / ".gitignore").write_text("*\n")
        known = _entries(home)
        file = _create(home, int(known[-1].stem) + 1 if known else 1, _document(kept))
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
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            continue
        with open(descriptor, "wb") as stream:  # noqa: PTH123 - a descriptor
            stream.write(data)
            stream.flush()
            os.fsync(descriptor)
        return file
    raise AssertionError("numbers never end")


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
        document = json.loads(read_file(str(file)))
        if document["format"] != _FORMAT:
            raise JournalError(f"{file} was written by another version of ds-migrate: undo with that version")
        changes = tuple(_unpacked(change) for change in document["files"])
    except (OSError, ValueError, KeyError, TypeError, zlib.error) as error:
        raise JournalError(
            f"the journal entry {file} cannot be read ({error}): remove it to reach the run before"
        ) from error
    return Entry(file, changes)


def _unpacked(packed: dict[str, Any]) -> Change:
    before = packed["before"]
    data = None if before is None else zlib.decompress(base64.b64decode(before, validate=True))
    return Change(Path(packed["path"]), data, packed["after"])
