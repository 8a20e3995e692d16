"""Ranks that see the same files: all of them, or those of one machine each."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

from trial_runtime import core
from trial_runtime.errors import CheckpointStorageError
from trial_runtime.pytorch._checkpoints import manifest

_ATTEMPTS, _SECONDS_BETWEEN = 20, 0.5  # a network file system may show a new file late
_MARK = ".tmp-disk-"


@dataclasses.dataclass(frozen=True)
class Disks:
    """The ranks by the disk that they see in the place of the checkpoints' folder.

    Attributes:
        nodes: for each rank the number of its machine; None: all ranks see the same disk.
    """

    nodes: tuple[int, ...] | None = None

    @property
    def is_shared(self) -> bool:
        """Return whether all ranks see the same disk."""
        return self.nodes is None

    def peers(self, ranks: core.DistributedContext) -> list[int]:
        """Return the ranks that see this rank's disk, in order."""
        if self.nodes is None:
            return list(range(ranks.size))
        return [rank for rank, node in enumerate(self.nodes) if node == self.nodes[ranks.rank]]

    def is_keeper(self, ranks: core.DistributedContext) -> bool:
        """Return whether this rank makes, renames and removes folders of its disk."""
        return self.peers(ranks)[0] == ranks.rank

    def share(self, ranks: core.DistributedContext, sizes: Mapping[str, int]) -> list[str]:
        """Return the part of files that are on this rank's disk that this rank takes care of."""
        peers = self.peers(ranks)
        return manifest.shares(sizes, len(peers))[peers.index(ranks.rank)]

    def own_share(self, ranks: core.DistributedContext, folder: Path) -> list[str]:
        """Return the part of a checkpoint that this rank takes care of: each file on any disk is in one part.

        Collective.
        """
        listed = ranks.allgather(manifest.files(folder) if self.is_keeper(ranks) else None)
        keeper, earlier = self.peers(ranks)[0], set[str]()
        for each in listed[:keeper]:
            earlier.update(each or ())
        mine = {name: size for name, size in (listed[keeper] or {}).items() if name not in earlier}
        return self.share(ranks, {name: size for name, size in mine.items() if name != manifest.MANIFEST})


def find_disks(ranks: core.DistributedContext, directory: Path) -> Disks:
    """Return which ranks see the same folder; asks the disk only when there are several machines. Collective.

    Raises:
        CheckpointStorageError: on every rank, when some machines share the folder and others do not.
    """
    nodes = tuple(ranks.allgather(ranks.cross_rank))
    if len(set(nodes)) == 1:
        return Disks()
    token = ranks.broadcast(uuid.uuid4().hex)
    mark = directory / f"{_MARK}{token}-{ranks.cross_rank}"
    is_first = nodes.index(ranks.cross_rank) == ranks.rank
    with contextlib.suppress(OSError):  # reported by the check whether the folder is writable
        if is_first:
            directory.mkdir(parents=True, exist_ok=True)
            mark.touch()
    ranks.allgather(None)
    seen = ranks.allgather(_seen(directory, token, len(set(nodes))) if is_first else None)
    with contextlib.suppress(OSError):
        if is_first:
            mark.unlink()
    views = {node: view for node, view in zip(nodes, seen, strict=True) if view is not None}
    if all(view == set(nodes) for view in views.values()):
        return Disks()
    if all(len(view) <= 1 for view in views.values()):
        return Disks(nodes)
    raise CheckpointStorageError(
        f"{directory} is one folder on some machines and another on others (machine {min(views)} sees the files of "
        f"machines {sorted(views[min(views)])}): share it among all of them, or among none."
    )


def _seen(directory: Path, token: str, wanted: int) -> set[int]:
    found: set[int] = set()
    for attempt in range(_ATTEMPTS):
        with contextlib.suppress(OSError):
            found = {int(path.name.rpartition("-")[2]) for path in directory.glob(f"{_MARK}{token}-*")}
        if len(found) == wanted or (attempt and not _is_network(directory)):
            break
        time.sleep(_SECONDS_BETWEEN)
    return found


def _is_network(directory: Path) -> bool:
    """Return whether the folder may be on a network file system: where the kernel's table does not have it as local."""
    local = {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "tmpfs", "ramfs", "overlay", "apfs", "hfs"}
    best, kind = "", ""
    try:
        for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
            _, place, file_system, *_ = line.split(" ")
            if str(directory.resolve()).startswith(place) and len(place) >= len(best):
                best, kind = place, file_system
    except (OSError, ValueError):
        return True
    return kind not in local


def refuse_separate(ranks: core.DistributedContext, directory: Path) -> None:
    """Raise what to do where each machine has a separate folder and there is no storage that all reach. Collective.

    Raises:
        CheckpointStorageError: always.
    """
    names = ranks.allgather(socket.gethostname())
    machines = ", ".join(dict.fromkeys(names))
    raise CheckpointStorageError(
        f"{directory} is a separate folder on each machine ({machines}), and a checkpoint needs the files of all: put "
        "it on a file system that all machines share (ds-train --run-dir, or checkpoint_storage.host_path), or name a "
        "checkpoint_storage of type s3, gcs, azure or url, to which each machine then uploads its own files."
    )
