"""The files that each rank adds to a checkpoint that all ranks save together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from trial_runtime.core._distributed import DistributedContext


def listed(folder: Path) -> list[str]:
    """Return what is below a folder, relative to it; folders end with ``/``."""
    paths = sorted(folder.rglob("*"))
    return [path.relative_to(folder).as_posix() + ("/" if path.is_dir() else "") for path in paths]


def shares_of(folder: Path | None, selector: Callable[[str], bool] | None, ranks: DistributedContext) -> list[str]:
    """Return what this rank adds of its folder, relative to it. Collective.

    Ranks that name the same folder add it once, unless they select from it. A file that several ranks have with the
    same content is added by the first of them.

    Raises:
        RuntimeError: no rank has a folder, or ranks have different files of the same name.
    """
    identity = None if folder is None else (folder.stat().st_dev, folder.stat().st_ino)
    identities = ranks.allgather(identity)
    if not any(identities):
        raise RuntimeError(
            "cannot call .upload(ckpt_dir=None, shard=True), from all ranks; at least one rank must have a valid "
            "ckpt_dir"
        )
    names: list[str] = []
    if folder is not None and (selector is not None or identities.index(identity) == ranks.rank):
        names = [name for name in listed(folder) if selector is None or selector(name)]
    owners: dict[str, list[int]] = {}
    for rank, everyones in enumerate(ranks.allgather(names)):
        for name in everyones:
            owners.setdefault(name.rstrip("/"), []).append(rank)
    repeated = [name for name in names if len(owners[name.rstrip("/")]) > 1]
    own = {name.rstrip("/"): _content(folder / name) for name in repeated if folder is not None}
    contents = ranks.allgather(own)
    conflicts = {
        name: of for name, of in owners.items() if len(of) > 1 and len({contents[rank][name] for rank in of}) > 1
    }
    _refuse(conflicts, "files", ranks)
    return [name for name in names if owners[name.rstrip("/")][0] == ranks.rank]


def merge_metadata(ranks: DistributedContext, metadata: dict[str, Any] | None) -> dict[str, Any]:
    """Return the metadata of all ranks in one; dicts are merged in turn. Collective.

    Raises:
        RuntimeError: ranks have different values of one key.
    """
    merged: dict[str, Any] = {}
    givers: dict[str, list[int]] = {}
    conflicts: dict[str, list[int]] = {}
    for rank, own in enumerate(ranks.allgather(metadata or {})):
        _merge(merged, own, "", rank, givers, conflicts)
    _refuse(conflicts, "metadata", ranks)
    return merged


def _merge(
    merged: dict[str, Any],
    own: dict[str, Any],
    above: str,
    rank: int,
    givers: dict[str, list[int]],
    conflicts: dict[str, list[int]],
) -> None:
    for key, value in own.items():
        path = f"{above}/{key}"
        givers.setdefault(path, []).append(rank)
        if isinstance(value, dict) and isinstance(merged.get(key, {}), dict):
            _merge(merged.setdefault(key, {}), value, path, rank, givers, conflicts)
        elif key in merged and merged[key] != value:
            conflicts[path] = list(givers[path])
        else:
            merged[key] = value


def _content(path: Path) -> str:
    if path.is_dir():
        return "a directory"
    from trial_runtime.pytorch._checkpoints import manifest

    return str(manifest.describe(path)["sha256"])


def _refuse(conflicts: dict[str, list[int]], what: str, ranks: DistributedContext) -> None:
    """Raise an error when there are conflicts; the chief's lists them line by line."""
    if conflicts and ranks.rank > 0:
        raise RuntimeError(f"refusing to upload with {what} conflicts: {conflicts}")
    if conflicts:
        lines = [f"    {name} uploaded by ranks {of}" for name, of in sorted(conflicts.items())]
        raise RuntimeError(f"refusing to upload with {what} conflicts:\n" + "\n".join(lines))
