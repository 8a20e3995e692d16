"""Files that are there whole or not at all: written beside their place, on the disk, then given their name."""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_TEMPORARY = re.compile(r"\.ds-migrate-(\d+)-[0-9a-f]{16}\.tmp")
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


def write_temporary(folder: Path, data: bytes, like: os.stat_result | None = None) -> Path:
    """Write a new file with ``data``, on the disk, with the mode and owner of ``like``. Raises OSError."""
    temporary = folder / f".ds-migrate-{os.getpid()}-{secrets.token_hex(8)}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        with open(descriptor, "wb") as stream:  # noqa: PTH123 - a descriptor
            stream.write(data)
            stream.flush()
            if like is not None:
                with suppress(OSError):  # only root may give a file away
                    os.fchown(descriptor, like.st_uid, like.st_gid)
                os.fchmod(descriptor, stat.S_IMODE(like.st_mode))
            os.fsync(descriptor)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def give_new_name(temporary: Path, path: Path) -> None:
    """Rename the file to a name that no file has yet, not even a link. Raises FileExistsError and other OSErrors."""
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, "file exists", str(path)) from error
        temporary.rename(path)
    else:
        temporary.unlink(missing_ok=True)


def write_new(path: Path, data: bytes) -> None:
    """Write a file that does not exist yet, not even as a link. Raises FileExistsError and other OSErrors."""
    temporary = write_temporary(path.parent, data)
    try:
        give_new_name(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def replace(path: Path, data: bytes, like: os.stat_result | None = None) -> None:
    """Give the file this content, or make it. Raises OSError."""
    temporary = write_temporary(path.parent, data, like)
    try:
        os.replace(temporary, path)  # noqa: PTH105
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk, where its file system can."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def sweep(folders: Iterable[Path]) -> None:
    """Remove the temporary files that killed processes left in the folders; never raises."""
    for folder in folders:
        with suppress(OSError):
            for name in os.listdir(folder):  # noqa: PTH208 - names, not paths
                found = _TEMPORARY.fullmatch(name)
                if found is not None and not _is_running(int(found[1])):
                    (folder / name).unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    """Return whether a process with this number is there, this one not counted."""
    if process == os.getpid():
        return False
    try:
        os.kill(process, 0)
    except (OSError, OverflowError) as error:
        return isinstance(error, PermissionError)
    return True
