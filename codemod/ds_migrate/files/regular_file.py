"""Reading a regular file as bytes."""

from __future__ import annotations

import errno
import os
import stat

_OPEN = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC  # a FIFO must not make the run wait


def read_file(name: str, follow_links: bool = True) -> bytes:
    """Return the bytes of a regular file. Raises OSError (ELOOP for a link that must not be followed)."""
    descriptor = os.open(name, _OPEN if follow_links else _OPEN | os.O_NOFOLLOW)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", name)
        data = os.read(descriptor, status.st_size + 1)
        if len(data) != status.st_size:  # it grew or shrank under us, or it has no size (as in /proc)
            while chunk := os.read(descriptor, 1 << 20):
                data += chunk
        return data
    finally:
        os.close(descriptor)
