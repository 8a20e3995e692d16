"""The groups of ranks among which a run exchanges objects: all ranks, and those of a node."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from trial_runtime._cluster_info import SECRET_VARIABLE
from trial_runtime._ranks import LOOPBACK
from trial_runtime.core._object_collectives import (
    TIMEOUT,
    ObjectCollectives,
    StoreCollectives,
    TorchCollectives,
    connect_store,
    connect_to_served_store,
)

_count = itertools.count()  # of groups that use the launcher's store; the same on all ranks
MANUAL_INIT = "DET_MANUAL_INIT_DISTRIBUTED"
"""Environment variable with which a DeepSpeedTrial asks to start torch.distributed itself, in its ``__init__``."""


def is_init_manual() -> bool:
    """Return whether torch.distributed is left alone until the trial starts it."""
    return bool(os.environ.get(MANUAL_INIT)) and not dist.is_initialized()


@dataclass
class RankGroups:
    """Collectives among all ranks and among those of this node, made on first use by all ranks.

    Args:
        rank: index of this process in the run.
        size: number of processes in the run.
        local_rank: index of this process on its node.
        local_size: number of processes on this node.
        cross_rank: index of this node.
        cross_size: number of nodes.
        chief_ip: address of rank 0, for ranks on several nodes without torch.distributed.
        port: port of rank 0's store, without torch.distributed.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    chief_ip: str | None
    port: int
    _made: tuple[ObjectCollectives, ObjectCollectives] | None = None  # of all ranks, of this node
    _store: Any = None
    _store_name: str = ""

    def everyone(self) -> ObjectCollectives:
        """Return the collectives of all ranks."""
        return self._collectives()[0]

    def node(self) -> ObjectCollectives:
        """Return the collectives of the ranks on this node."""
        return self._collectives()[1]

    def separate(self) -> RankGroups:
        """Return further groups of the same ranks, for another thread. Collective."""
        other = RankGroups(
            self.rank, self.size, self.local_rank, self.local_size, self.cross_rank, self.cross_size, self.chief_ip,
            self.port,
        )  # fmt: skip
        if self.size > 1:
            over_torch = isinstance(self.everyone(), TorchCollectives)
            other._made = self._make_over_torch() if over_torch else self._make_over_store("separate")
        return other

    def close(self) -> None:
        """Release the groups. Further collectives create new ones."""
        self._made = self._store = None

    def use_launcher_store(self) -> None:
        """Exchange objects through the launcher's store, so that a program can initialize torch.distributed later.

        Without effect where torch.distributed is initialized, there is no launcher's store, or other machines reach
        the store and the ranks share no secret.
        """
        env = os.environ
        if self.size == 1 or dist.is_initialized() or env.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
            return
        address = env.get("MASTER_ADDR", "")
        if address in (LOOPBACK, "localhost") or env.get(SECRET_VARIABLE):
            self._store = connect_to_served_store(address, int(env["MASTER_PORT"]), self.size)
            self._store_name = f"core{next(_count)}"  # the store keeps what earlier contexts of these ranks wrote

    def _collectives(self) -> tuple[ObjectCollectives, ObjectCollectives]:
        if self._made is None:
            over_torch = self._store is None and self._uses_torch_distributed()
            self._made = self._make_over_torch() if over_torch else self._make_over_store()
        return self._made

    def _uses_torch_distributed(self) -> bool:
        """Return whether torch.distributed has these ranks; initializes it where the environment describes them."""
        env, own = os.environ, (self.rank, self.size)
        if not dist.is_initialized():
            described = (env.get("RANK"), env.get("WORLD_SIZE")) == (str(self.rank), str(self.size))
            if not described or "MASTER_ADDR" not in env or is_init_manual():
                return False
            dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
        others = (dist.get_rank(), dist.get_world_size())
        if others != own and others[1] > 1:
            raise ValueError(
                f"The DistributedContext has rank {self.rank} of {self.size}, torch.distributed has rank "
                f"{others[0]} of {others[1]}. Give both the same."
            )
        return others == own

    def _make_over_torch(self) -> tuple[ObjectCollectives, ObjectCollectives]:
        everyone = TorchCollectives(dist.new_group(backend="gloo", timeout=TIMEOUT))
        if self.cross_size == 1:
            return everyone, everyone
        own = everyone
        for node in range(self.cross_size):  # every rank makes every group
            first = node * self.local_size
            ranks = list(range(first, min(first + self.local_size, self.size)))
            group = dist.new_group(ranks, backend="gloo", timeout=TIMEOUT)
            if node == self.cross_rank:
                own = TorchCollectives(group, first)
        return everyone, own

    def _make_over_store(self, purpose: str = "own") -> tuple[ObjectCollectives, ObjectCollectives]:
        if self._store is None:
            address = LOOPBACK if self.local_size == self.size else str(self.chief_ip)
            self._store = connect_store(address, self.port, self.rank, self.size)
        purpose = self._store_name + purpose
        node = f"{purpose}/node{self.cross_rank}"
        return (
            StoreCollectives(self._store, purpose, self.rank, self.size),
            StoreCollectives(self._store, node, self.local_rank, self.local_size),
        )
