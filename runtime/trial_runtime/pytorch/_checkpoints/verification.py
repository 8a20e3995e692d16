"""Verification of a checkpoint before it is read: whole, and of this user or plain data."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from trial_runtime import core
from trial_runtime.errors import InvalidCheckpointException, UntrustedCheckpointError
from trial_runtime.pytorch._checkpoints import manifest as _manifest
from trial_runtime.pytorch._checkpoints import restricted_load, signature
from trial_runtime.pytorch._checkpoints.disks import Disks
from trial_runtime.pytorch._checkpoints.manifest import MANIFEST


def verify_origin(distributed: core.DistributedContext, disks: Disks, path: Path) -> tuple[dict[str, Any], bool]:
    """Check that all files are there and whole, and that they hold plain data unless the checkpoint is trusted.

    Collective.

    Returns:
        the manifest, and whether its objects may run code: this user's run wrote it, or the user trusts it.

    Raises:
        InvalidCheckpointException: on every rank, naming the files, and the newest intact checkpoint.
        UntrustedCheckpointError: on every rank, where files hold objects that are no plain data.
    """
    chiefs = _read_manifest(path) if distributed.rank == 0 else None
    manifest, is_own, problem = distributed.broadcast(chiefs)
    problems = [problem] if problem else []
    files = (manifest or {}).get("files", {})
    mine = disks.share(distributed, {name: facts["size"] for name, facts in files.items()})
    problems.extend(_manifest.differences(path, ((name, files[name]) for name in mine)))
    if manifest:
        problems.extend(_manifest.unlisted(path, manifest))
    if distributed.rank == 0:
        problems.extend(_manifest.links_outside(path))
    everyones = sorted({problem for rank in distributed.allgather(problems) for problem in rank})
    if everyones:
        sound = distributed.broadcast(_newest_sound(path) if distributed.rank == 0 else None)
        advice = "There is no other intact checkpoint beside it."
        if sound:
            advice = f"The newest intact checkpoint is {sound}: remove the damaged one to resume from it."
        raise InvalidCheckpointException(f"Checkpoint {path} is damaged: {'; '.join(everyones)}. {advice}")
    is_trusted = bool(is_own) or signature.is_trust_given()
    is_trusted = bool(distributed.broadcast(is_trusted))
    if not is_trusted:
        _refuse_objects(distributed, disks, path)
    return dict(manifest), is_trusted


def _refuse_objects(distributed: core.DistributedContext, disks: Disks, path: Path) -> None:
    """Refuse a checkpoint with files that hold something else than plain data. The ranks share the files."""
    sizes = {name: size for name, size in _manifest.files(path).items() if restricted_load.is_loadable(name)}
    everyones = distributed.allgather(restricted_load.refused(path, disks.share(distributed, sizes)))
    if problems := sorted(problem for rank in everyones for problem in rank):
        raise UntrustedCheckpointError(restricted_load.refusal(path, problems))


def _read_manifest(path: Path) -> tuple[dict[str, Any] | None, bool, str | None]:
    """Return the manifest (empty for a checkpoint of Determined), whether this user signed it, and what is wrong."""
    try:
        return *_manifest.read_signed(path), None
    except FileNotFoundError:
        if (path / "metadata.json").exists() or (path / "trial_state.pkl").exists():
            return {}, False, None
        return None, False, f"{MANIFEST}: missing, which each checkpoint has"
    except (OSError, ValueError) as error:
        return None, False, f"{MANIFEST}: {error}"


def _newest_sound(other_than: Path) -> str | None:
    for name in reversed(_manifest.committed(other_than.parent)):
        path = other_than.parent / name
        with contextlib.suppress(OSError, ValueError):  # its manifest is damaged too
            if path != other_than and not _manifest.differences(path, _manifest.read(path)["files"].items()):
                return name
    return None
