"""Signatures of manifests, by which a user's own checkpoints are recognized.

The key is a file of this user, outside of all checkpoints: who can write to a checkpoint cannot sign it.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import os
import secrets
import stat
from pathlib import Path

from trial_runtime._cluster_info import TRUST_VARIABLE

logger = logging.getLogger("trial_runtime.pytorch")

_KEY_BYTES = 32


def is_trust_given() -> bool:
    """Return whether the user trusts all checkpoints of this process."""
    return os.environ.get(TRUST_VARIABLE) == "1"


def key_file() -> Path:
    """Return the file with this user's key."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "ds-migrate" / "checkpoint-key"


def sign(digest: str) -> str | None:
    """Return the signature of a manifest's digest; None where no key can be kept, with one line in the log."""
    try:
        _make_key()
        return hmac.digest(_read_key(), digest.encode(), "sha256").hex()
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: no home directory
        logger.info(f"Checkpoints are not signed ({error}); resuming from them loads plain data only.")
        return None


def is_valid(digest: str, signature: object) -> bool:
    """Return whether this user's key signed the digest."""
    if not isinstance(signature, str) or not signature.isascii():
        return False
    try:
        return hmac.compare_digest(hmac.digest(_read_key(), digest.encode(), "sha256").hex(), signature)
    except (OSError, RuntimeError, ValueError):
        return False


def _read_key() -> bytes:
    """Return the key.

    Raises:
        OSError: there is none.
        ValueError: it is no secret of this user.
    """
    with key_file().open("rb") as file:
        about = os.fstat(file.fileno())
        key = file.read()
    if about.st_uid != os.geteuid() or about.st_mode & (stat.S_IRWXG | stat.S_IRWXO) or len(key) != _KEY_BYTES:
        raise ValueError(f"{key_file()} must be {_KEY_BYTES} bytes that only its owner can read: remove it")
    return key


def _make_key() -> None:
    """Make the key, unless there is one. Another process may do the same at the same moment."""
    file = key_file()
    if file.exists():
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}-{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as new:
            new.write(secrets.token_bytes(_KEY_BYTES))
        with contextlib.suppress(FileExistsError):
            os.link(temporary, file)
    finally:
        temporary.unlink()
