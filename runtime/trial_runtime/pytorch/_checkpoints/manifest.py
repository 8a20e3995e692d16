"""Manifest of a checkpoint's files, and durable writes."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from trial_runtime.pytorch._checkpoints import staging

MANIFEST = "manifest.json"


def files(folder: Path) -> dict[str, int]:
    """Return the files below a folder, relative to it, and their sizes in bytes."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in sorted(found)}


def shares(sizes: Mapping[str, int], ranks: int) -> list[list[str]]:
    """Share files out among the ranks, about as many bytes to each."""
    parts: list[list[str]] = [[] for _ in range(ranks)]
    totals = [0] * ranks
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        rank = totals.index(min(totals))
        parts[rank].append(name)
        totals[rank] += sizes[name]
    return parts


def describe(path: Path, sync: bool = False) -> dict[str, Any]:
    """Return the size and sha256 of a file; with ``sync``, fsync it too."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
        if sync:
            os.fsync(file.fileno())
        return {"size": path.stat().st_size, "sha256": digest.hexdigest()}


def differences(folder: Path, described: Iterable[tuple[str, dict[str, Any]]]) -> list[str]:
    """Compare files of a checkpoint with their description; one line a difference."""
    found = []
    for name, wanted in described:
        path = folder / name
        if not path.is_file():
            found.append(f"{name}: missing")
        elif (size := path.stat().st_size) != wanted["size"]:
            found.append(f"{name}: {size} bytes, should be {wanted['size']}")
        elif describe(path)["sha256"] != wanted["sha256"]:
            found.append(f"{name}: its content has changed")
    return found


def read(folder: Path) -> dict[str, Any]:
    """Return the manifest of a checkpoint.

    Raises:
        OSError: when there is none.
        ValueError: when it is damaged.
    """
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise ValueError("it holds no manifest")
    own = manifest.pop("sha256", None)
    if own not in (None, _digest(manifest)):
        raise ValueError("its content has changed")
    return manifest


def text_of(manifest: dict[str, Any]) -> str:
    """Return a manifest as text, with its own hash, which :func:`read` checks."""
    return json.dumps({**manifest, "sha256": _digest(manifest)}, indent=1, sort_keys=True)


def _digest(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def committed(directory: Path) -> list[str]:
    """Return the names of the checkpoints in a folder, oldest first."""
    found = [path for path in directory.glob(f"*/{MANIFEST}") if not path.parent.name.startswith(staging.PREFIX)]
    return [path.parent.name for path in sorted(found, key=lambda path: (path.stat().st_mtime_ns, path.parent.name))]


def write_synced(path: Path, text: str) -> None:
    """Write a small file and fsync it."""
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Fsync a folder's entries."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(checkpoint: Path) -> None:
    """Remove a checkpoint; its manifest first, so that what is left of an interrupted removal counts as none."""
    (checkpoint / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(checkpoint, ignore_errors=True)
