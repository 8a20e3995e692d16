"""The journal of the last runs, kept beside the project, so that ``--undo`` can take it back.

One JSON file a run, written before the first source file is touched, with the bytes each file had and the hash of what
was written. It stays unfinished until every file is renamed: the next ``--write`` restores what a killed run left half
written. The content of new files is kept too, so that one can be written again. ``.ds-migrate/`` ignores itself in git.
A project may come from a stranger, with a journal in it: no link
is followed, and an entry only reaches files of the project that holds it.
"""

from __future__ import annotations

import base64
import errno
import fcntl
import hashlib
import json
import os
import re
import zlib
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from ds_migrate.files import atomic, git
from ds_migrate.files.discovery import JOURNAL_FOLDER
from ds_migrate.files.regular_file import read_file

KEPT_RUNS = 20
_MOST_BYTES = 1 << 28  # of an entry, and of the files that it restores
_FORMAT = 1
_OTHERS_FILES = frozenset({".git", JOURNAL_FOLDER})  # of these a run never writes any
_ENTRY = re.compile(r"\d{6,}\.json")


class JournalError(Exception):
    """The journal cannot be kept or read; the message names the reason and what to do."""


@dataclass(frozen=True)
class Change:
    """One file of a run: ``before`` is None when the run created it, ``created`` is then its content, where that is
    known. ``path`` is absolute, links resolved."""

    path: Path
    before: bytes | None
    after_hash: str
    created: bytes | None = None


@dataclass(frozen=True)
class Entry:
    """One run: where it is kept, what it wrote, and whether it wrote all of it. ``lock`` is held while it writes."""

    file: Path
    changes: tuple[Change, ...]
    is_finished: bool = True
    lock: int | None = None

    @property
    def description(self) -> str:
        """The run's number, project and time, for messages."""
        number, project = int(self.file.stem), self.file.parents[2]
        return f"run {number} in {project}, of {datetime.fromtimestamp(self.file.stat().st_mtime):%Y-%m-%d %H:%M}"

    def finish(self, written: Container[Path]) -> None:
        """Finish the entry, with the files that were written after all; without one, forget it. Raises OSError."""
        changes = tuple(change for change in self.changes if change.path in written)
        if changes:
            self._write(changes, is_finished=True)
        else:
            self.forget()
        if self.lock is not None:
            os.close(self.lock)

    def reopen(self) -> None:
        """Mark the entry as unfinished: its files are about to be restored. Raises OSError."""
        if self.is_finished:
            self._write(self.changes, is_finished=False)

    def is_at_work(self) -> bool:
        """Return whether the run of an unfinished entry is still writing."""
        try:
            descriptor = os.open(self.file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return True  # it has just finished
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return error.errno == errno.EWOULDBLOCK
        finally:
            os.close(descriptor)
        return False

    def _write(self, changes: Sequence[Change], is_finished: bool) -> None:
        atomic.replace(self.file, _document(changes, is_finished))

    def forget(self) -> None:
        """Remove the entry; the journal's folder goes with the last one. Never raises."""
        with suppress(OSError):
            self.file.unlink()
        home = self.file.parent
        with suppress(OSError):
            if not _entries(home):
                atomic.sweep([home, home.parent])
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
    home = root / JOURNAL_FOLDER / "journal"
    kept = tuple(
        Change(path, before, fingerprint(after), after if before is None else None) for path, before, after in changes
    )
    document = _document(kept, is_finished=False)
    if max(len(document), sum(len(before or after) for _path, before, after in changes)) > _MOST_BYTES:
        raise JournalError(f"the files to write hold more than {_MOST_BYTES >> 20} MiB: convert them in several runs")
    try:
        known = _entries(home)  # before anything is made: the folder may be a link
        home.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            atomic.write_new(home.parent / ".gitignore", b"*\n")
        atomic.sweep([home])
        file, lock = _create(home, int(known[-1].stem) + 1 if known else 1, document)
        for old in known[: max(0, len(known) + 1 - KEPT_RUNS)]:
            old.unlink(missing_ok=True)
    except OSError as error:
        raise JournalError(
            f"the journal {home} cannot be written ({error.strerror}), so nothing could be undone: make it writable"
        ) from error
    return Entry(file, kept, is_finished=False, lock=lock)


def last_entry(folder: Path) -> Entry | None:
    """The newest run kept for ``folder``: in its work tree, or in a folder above if it wrote below ``folder``.

    ``folder`` is absolute with links resolved. Raises JournalError.
    """
    own = Path(git.work_tree(str(folder)) or folder)
    for place in (folder, *folder.parents):
        entries = _entries(place / JOURNAL_FOLDER / "journal")
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
        for file in reversed(_entries(place / JOURNAL_FOLDER / "journal")):
            entry = _read(file)
            if any(change.path.is_relative_to(path) for change in entry.changes):
                return entry
    return None


def unfinished(paths: Iterable[Path]) -> list[Entry]:
    """Return the runs that were ended while they wrote one of the paths, or below it.

    ``paths`` are absolute with links resolved. Raises JournalError.
    """
    paths = list(paths)
    places = dict.fromkeys(place for path in paths for place in (path, *path.parents))
    found = []
    for home in (place / JOURNAL_FOLDER / "journal" for place in places if os.path.lexists(place / JOURNAL_FOLDER)):
        for file in _entries(home)[-1:]:  # before it wrote, a run restored what another one left
            entry = _read(file)
            if not entry.is_finished and not entry.is_at_work():
                entry = _read(file)  # it may just have finished
                if not entry.is_finished and any(c.path.is_relative_to(path) for c in entry.changes for path in paths):
                    found.append(entry)
    return found


def content_of_created(path: Path) -> bytes | None:
    """Return what the last run that created the file wrote into it; None when that is not known.

    ``path`` is absolute with links resolved. Raises JournalError.
    """
    homes = (place / JOURNAL_FOLDER / "journal" for place in path.parents if os.path.lexists(place / JOURNAL_FOLDER))
    for home in homes:
        for file in reversed(_entries(home)):
            for change in _read(file).changes:
                if change.path == path and change.created is not None:
                    return change.created
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


def _create(home: Path, number: int, data: bytes) -> tuple[Path, int]:
    """Write the next free entry and return it with its lock. Two runs at once get two numbers."""
    temporary = atomic.write_temporary(home, data)
    try:
        lock = os.open(temporary, os.O_RDONLY | os.O_CLOEXEC)
        with suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for candidate in _numbers(number):
            file = home / f"{candidate:06}.json"
            try:
                atomic.give_new_name(temporary, file)
            except FileExistsError:
                continue
            atomic.sync_folder(home)
            return file, lock
    finally:
        temporary.unlink(missing_ok=True)
    raise AssertionError("numbers never end")


def _numbers(start: int) -> Iterator[int]:
    while True:
        yield start
        start += 1


def _document(changes: Sequence[Change], is_finished: bool) -> bytes:
    files = [_packed(change) for change in changes]
    return json.dumps({"format": _FORMAT, "finished": is_finished, "files": files}, indent=1).encode("ascii")


def _packed(change: Change) -> dict[str, Any]:
    packed = {"path": str(change.path), "before": _compressed(change.before), "after": change.after_hash}
    return packed if change.created is None else {**packed, "created": _compressed(change.created)}


def _compressed(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(zlib.compress(data)).decode("ascii")


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
    return Entry(file, changes, document.get("finished") is not False)


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
        contents: list[bytes | None] = []
        for text in (before, packed.get("created")):
            data = None
            if text is not None:
                data = zlib.decompressobj().decompress(base64.b64decode(text, validate=True), room + 1)
                room -= len(data)
                if room < 0:
                    raise ValueError(f"it holds more than {_MOST_BYTES >> 20} MiB")
            contents.append(data)
        data, created = contents
        if created is not None and fingerprint(created) != after:
            raise ValueError(f"the content of {path} is not what was written")
        yield Change(path, data, after, created)
