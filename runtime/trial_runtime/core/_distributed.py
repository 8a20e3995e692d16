"""The ranks of a run, and collectives of Python objects among them."""

from __future__ import annotations

import copy
import itertools
import os
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

_count = itertools.count()  # of contexts that use the launcher's store; the same on all ranks
MANUAL_INIT = "DET_MANUAL_INIT_DISTRIBUTED"
"""Environment variable with which a DeepSpeedTrial asks to start torch.distributed itself, in its ``__init__``."""


def is_init_manual() -> bool:
    """Return whether torch.distributed is left alone until the trial starts it."""
    return bool(os.environ.get(MANUAL_INIT)) and not dist.is_initialized()


class DistributedContext:
    """Rank, size and object collectives of a run.

    The collectives use torch.distributed, in a separate gloo group, so they never touch the accelerator and
    waiting in them does not time out. Where torch.distributed is not initialized and the environment does not describe
    it, they use a small store that rank 0 serves. Every rank of the run must make the same calls in the same order.

    Args:
        rank: index of this process in the run.
        size: number of processes in the run.
        local_rank: index of this process on its node.
        local_size: number of processes on this node.
        cross_rank: index of this node.
        cross_size: number of nodes.
        chief_ip: address of rank 0, for ranks on several nodes without torch.distributed.
        pub_port: port of rank 0's store, without torch.distributed; ``port_offset`` is added.
        pull_port: accepted and not used.
        force_tcp: accepted and not used.

    Raises:
        ValueError: when only some of the six numbers are given, or they contradict each other.
        AssertionError: when ranks on several nodes have no address to connect to.

    Without torch.distributed, ranks on several nodes need a secret that they share, in the environment variable
    ``TRIAL_RUNTIME_SECRET``.
    """

    def __init__(
        self,
        *,
        rank: int,
        size: int,
        local_rank: int,
        local_size: int,
        cross_rank: int,
        cross_size: int,
        chief_ip: str | None = None,
        pub_port: int = 12360,
        pull_port: int = 12376,
        port_offset: int = 0,
        force_tcp: bool = False,
    ) -> None:
        del pull_port, force_tcp
        numbers = (rank, size, local_rank, local_size, cross_rank, cross_size)
        if all(number is None for number in numbers):
            rank, size, local_rank, local_size, cross_rank, cross_size = 0, 1, 0, 1, 0, 1
        elif any(number is None for number in numbers):
            raise ValueError(
                "rank, size, local_rank, local_size, cross_rank and cross_size must all be given; got "
                + ", ".join(map(str, numbers))
            )
        if not 0 <= rank < size:
            raise ValueError(f"rank must be in 0..size-1, got rank={rank} and size={size}.")
        self.rank = rank
        self.size = size
        self.local_rank = local_rank
        self.local_size = local_size
        self.cross_rank = cross_rank
        self.cross_size = cross_size
        self.chief_ip = chief_ip
        self._is_chief = rank == 0
        self._is_local_chief = local_rank == 0
        self._port = pub_port + port_offset
        self._collectives: tuple[ObjectCollectives, ObjectCollectives] | None = None
        self._store: Any = None
        self._store_name = ""
        if local_size != size and chief_ip is None and "MASTER_ADDR" not in os.environ and not dist.is_initialized():
            raise AssertionError(
                f"The {size} ranks are on several nodes ({local_size} on this one), and chief_ip was not given. Start "
                "them with torchrun, or give the address of rank 0 as chief_ip."
            )

    @classmethod
    def from_torch_distributed(cls, chief_ip: str | None = None) -> DistributedContext:
        """Return the context that ``torchrun`` (or an initialized torch.distributed) describes.

        Args:
            chief_ip: address of rank 0; by default the environment's ``DET_CHIEF_IP``. Not needed under ``torchrun``.

        Raises:
            ValueError: when the process was started by neither.
        """
        return cls._from_environment(chief_ip, "from_torch_distributed", "torchrun")

    @classmethod
    def from_deepspeed(cls, chief_ip: str | None = None) -> DistributedContext:
        """Return the context that the ``deepspeed`` launcher describes; works under ``torchrun`` too.

        Args:
            chief_ip: address of rank 0; by default the environment's ``DET_CHIEF_IP``.

        Raises:
            ValueError: when the process was started by neither.
        """
        return cls._from_environment(chief_ip, "from_deepspeed", "deepspeed or torchrun")

    @classmethod
    def from_horovod(cls, hvd: Any, chief_ip: str | None = None) -> DistributedContext:
        """Return the context that an initialized Horovod module describes.

        Trials share their gradients through torch.distributed, not through Horovod: wrapping a model on several ranks
        needs that to be up.

        Args:
            hvd: ``horovod.torch`` or a module like it, after ``hvd.init()``.
            chief_ip: address of rank 0; by default the environment's ``DET_CHIEF_IP``.
        """
        return cls(
            rank=hvd.rank(),
            size=hvd.size(),
            local_rank=hvd.local_rank(),
            local_size=hvd.local_size(),
            cross_rank=hvd.cross_rank(),
            cross_size=hvd.cross_size(),
            chief_ip=chief_ip or os.environ.get("DET_CHIEF_IP"),
        )

    @classmethod
    def _from_environment(cls, chief_ip: str | None, method: str, launcher: str) -> DistributedContext:
        env = os.environ
        if dist.is_available() and dist.is_initialized():
            rank, size = dist.get_rank(), dist.get_world_size()
        elif "RANK" in env and "WORLD_SIZE" in env:
            rank, size = int(env["RANK"]), int(env["WORLD_SIZE"])
        else:
            raise ValueError(
                f"DistributedContext.{method}() needs RANK and WORLD_SIZE in the environment. "
                f"Start the script with {launcher}, or leave `distributed` unset to train in one process."
            )
        local_size = int(env.get("LOCAL_WORLD_SIZE") or env.get("LOCAL_SIZE") or size)
        return cls(
            rank=rank,
            size=size,
            local_rank=int(env.get("LOCAL_RANK", rank % local_size)),
            local_size=local_size,
            cross_rank=int(env.get("GROUP_RANK") or env.get("CROSS_RANK") or rank // local_size),
            cross_size=int(env.get("GROUP_WORLD_SIZE") or env.get("CROSS_SIZE") or -(-size // local_size)),
            chief_ip=chief_ip or env.get("DET_CHIEF_IP"),
        )

    def get_rank(self) -> int:
        """Return the index of this process in the run."""
        return self.rank

    def get_local_rank(self) -> int:
        """Return the index of this process on its node."""
        return self.local_rank

    def get_size(self) -> int:
        """Return the number of processes in the run."""
        return self.size

    def get_num_agents(self) -> int:
        """Return the number of nodes in the run."""
        return self.cross_size

    def close(self) -> None:
        """Release the groups. Further collectives create new ones."""
        self._collectives = self._store = None

    def _use_torch_distributed(self) -> None:
        """Leave the store that a trial was made with which started torch.distributed itself. Collective."""
        if os.environ.get(MANUAL_INIT) and dist.is_initialized():
            self.close()

    def __enter__(self) -> DistributedContext:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def gather(self, stuff: Any) -> list[Any] | None:
        """Send ``stuff`` (picklable) to the chief; there a list ordered by rank comes back, elsewhere None."""
        return self._gather(stuff, self.size, self._is_chief, local=False)

    def gather_local(self, stuff: Any) -> list[Any] | None:
        """Gather among the ranks of this node, to its local chief; see :meth:`gather`."""
        return self._gather(stuff, self.local_size, self._is_local_chief, local=True)

    def allgather(self, stuff: Any) -> list[Any]:
        """Return every rank's ``stuff`` (picklable), ordered by rank, on every rank."""
        return self._allgather(stuff, self.size, local=False)

    def allgather_local(self, stuff: Any) -> list[Any]:
        """Gather on every rank of this node; see :meth:`allgather`."""
        return self._allgather(stuff, self.local_size, local=True)

    def broadcast(self, stuff: Any) -> Any:
        """Return the chief's ``stuff`` (picklable) on every rank."""
        return stuff if self.size == 1 else self._collectives_of(local=False).broadcast(stuff)

    def broadcast_local(self, stuff: Any = None) -> Any:
        """Return the local chief's ``stuff`` on every rank of this node."""
        return stuff if self.local_size == 1 else self._collectives_of(local=True).broadcast(stuff)

    def barrier(self) -> None:
        """Wait until every rank is here. Without a time limit."""
        self.allgather(None)

    def _gather(self, stuff: Any, size: int, is_chief: bool, local: bool) -> list[Any] | None:
        gathered = self._allgather(stuff, size, local)
        return gathered if is_chief else None

    def _allgather(self, stuff: Any, size: int, local: bool) -> list[Any]:
        return [stuff] if size == 1 else self._collectives_of(local).allgather(stuff)

    def group(self) -> Any:
        """Return the gloo group of all ranks' collectives. Created on first use, by all ranks.

        Raises:
            ValueError: when torch.distributed is not initialized and the environment does not describe it.
        """
        collectives = self._collectives_of(local=False)
        if not isinstance(collectives, TorchCollectives):
            raise ValueError(
                f"torch.distributed is not up on rank {self.rank} of {self.size}, and gradients are shared through it. "
                "Start the ranks with torchrun, or call torch.distributed.init_process_group() before."
            )
        return collectives.group

    def _use_launcher_store(self) -> None:
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

    def _collectives_of(self, local: bool) -> ObjectCollectives:
        if self._collectives is None:
            over_torch = self._store is None and self._uses_torch_distributed()
            self._collectives = self._make_torch_collectives() if over_torch else self._make_store_collectives()
        return self._collectives[local]

    def _with_separate_groups(self) -> DistributedContext:
        """Return the same ranks with separate groups, for another thread. Collective."""
        other = copy.copy(self)
        if self.size > 1:
            over_torch = isinstance(self._collectives_of(local=False), TorchCollectives)
            other._collectives = (
                self._make_torch_collectives() if over_torch else self._make_store_collectives("separate")
            )
        return other

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
                f"The DistributedContext says rank {self.rank} of {self.size}, torch.distributed says rank "
                f"{others[0]} of {others[1]}. Give both the same."
            )
        return others == own

    def _make_torch_collectives(self) -> tuple[ObjectCollectives, ObjectCollectives]:
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

    def _make_store_collectives(self, purpose: str = "own") -> tuple[ObjectCollectives, ObjectCollectives]:
        if self._store is None:
            address = "127.0.0.1" if self.local_size == self.size else str(self.chief_ip)
            self._store = connect_store(address, self._port, self.rank, self.size)
        purpose = self._store_name + purpose
        node = f"{purpose}/node{self.cross_rank}"
        return (
            StoreCollectives(self._store, purpose, self.rank, self.size),
            StoreCollectives(self._store, node, self.local_rank, self.local_size),
        )


class DummyDistributedContext(DistributedContext):
    """A single process."""

    def __init__(self) -> None:
        super().__init__(rank=0, size=1, local_rank=0, local_size=1, cross_rank=0, cross_size=1)
