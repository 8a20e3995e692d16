"""Manifest of a checkpoint's files, and durable writes."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from trial_runtime.errors import InvalidCheckpointException
from trial_runtime.pytorch._checkpoints import signature, staging

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


def unlisted(folder: Path, manifest: Mapping[str, Any]) -> list[str]:
    """Compare the files that a resume reads with the manifest's; one line for each that it does not list."""
    read = (name for name in files(folder) if name.startswith(("model", "rank_", "state_dict")))
    return [f"{name}: not one of the files that were saved" for name in read if name not in manifest["files"]]


def links_outside(folder: Path) -> list[str]:
    """Return one line for each link in a checkpoint that leads out of it: what is there is none of the checkpoint's."""
    links = (path for path in sorted(folder.rglob("*")) if path.is_symlink())
    outside = (path for path in links if not path.resolve().is_relative_to(folder.resolve()))
    return [f"{path.relative_to(folder)}: a link out of the checkpoint, to {path.readlink()}" for path in outside]


def read(folder: Path) -> dict[str, Any]:
    """Return the manifest of a checkpoint; see :func:`read_signed`."""
    return read_signed(folder)[0]


def read_signed(folder: Path) -> tuple[dict[str, Any], bool]:
    """Return the manifest of a checkpoint, and whether this user signed it.

    Raises:
        OSError: when there is none.
        ValueError: when it is damaged, or has not the fields that each has.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise ValueError("it holds no manifest")
    signed = manifest.pop("signature", None)
    own, digest = manifest.pop("sha256", None), _digest(manifest)
    if own not in (None, digest):
        raise ValueError("its content has changed")
    _check_fields(manifest)
    return manifest, own is not None and signature.is_valid(digest, signed)


def _check_fields(manifest: dict[str, Any]) -> None:
    """Refuse a manifest that lacks what a resume reads.

    Raises:
        ValueError: with the field.
    """
    if not manifest["files"]:
        raise ValueError("it lists no file")
    for name, about in manifest["files"].items():
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\0" in name or name != path.as_posix() or name == ".":
            raise ValueError(f"it lists the file {name[:80]!r}, which is not one of the checkpoint")
        if not isinstance(about, dict) or not _is_count(about.get("size")) or not _is_sha256(about.get("sha256")):
            raise ValueError(f"it has no size and sha256 of the file {name[:80]!r}")
    progress = manifest.get("progress")
    if not isinstance(progress, dict) or not _is_count(progress.get("batches")):
        raise ValueError("it does not count the batches trained (progress.batches)")
    for name, value in progress.items():
        if not (value is None or _is_count(value)):
            raise ValueError(f"progress.{name} is {value!r:.80}, and should be a number of batches")
    for name in ("world_size", "data_parallel_size"):
        if not (name not in manifest or (_is_count(manifest[name]) and manifest[name] > 0)):
            raise ValueError(f"{name} is {manifest[name]!r:.80}, and should be a number of ranks")
    best = manifest.get("best_metric")
    if best is not None and (isinstance(best, bool) or not isinstance(best, int | float)):
        raise ValueError(f"best_metric is {best!r:.80}, and should be a number")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _is_sha256(value: object) -> bool:
    return isinstance(value, str) and len(value) == 64


def text_of(manifest: dict[str, Any]) -> str:
    """Return a manifest as text, with its own hash and this user's signature, which :func:`read_signed` checks."""
    digest = _digest(manifest)
    signed = signature.sign(digest)
    own = {"sha256": digest, **({} if signed is None else {"signature": signed})}
    return json.dumps({**manifest, **own}, indent=1, sort_keys=True)


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
    """Remove a checkpoint, if it is there; its manifest first, so that what an interrupted removal leaves is none.

    Raises:
        InvalidCheckpointException: the folder is no checkpoint.
    """
    if not checkpoint.exists():
        return
    if not (checkpoint / MANIFEST).is_file():
        raise InvalidCheckpointException(f"{checkpoint} has no {MANIFEST}: it is no checkpoint, and is left alone.")
    (checkpoint / MANIFEST).unlink()
    shutil.rmtree(checkpoint, ignore_errors=True)
