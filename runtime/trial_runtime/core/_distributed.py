"""The ranks of a run, and collectives of Python objects among them."""

from __future__ import annotations

import copy
import os
from typing import Any

import torch.distributed as dist

from trial_runtime.core._object_collectives import TorchCollectives
from trial_runtime.core._rank_groups import MANUAL_INIT, RankGroups


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
        self._groups = RankGroups(
            rank, size, local_rank, local_size, cross_rank, cross_size, chief_ip, pub_port + port_offset
        )
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
        self._groups.close()

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
        gathered = self.allgather(stuff)
        return gathered if self.rank == 0 else None

    def gather_local(self, stuff: Any) -> list[Any] | None:
        """Gather among the ranks of this node, to its local chief; see :meth:`gather`."""
        gathered = self.allgather_local(stuff)
        return gathered if self.local_rank == 0 else None

    def allgather(self, stuff: Any) -> list[Any]:
        """Return every rank's ``stuff`` (picklable), ordered by rank, on every rank."""
        return [stuff] if self.size == 1 else self._groups.everyone().allgather(stuff)

    def allgather_local(self, stuff: Any) -> list[Any]:
        """Gather on every rank of this node; see :meth:`allgather`."""
        return [stuff] if self.local_size == 1 else self._groups.node().allgather(stuff)

    def broadcast(self, stuff: Any) -> Any:
        """Return the chief's ``stuff`` (picklable) on every rank."""
        return stuff if self.size == 1 else self._groups.everyone().broadcast(stuff)

    def broadcast_local(self, stuff: Any = None) -> Any:
        """Return the local chief's ``stuff`` on every rank of this node."""
        return stuff if self.local_size == 1 else self._groups.node().broadcast(stuff)

    def barrier(self) -> None:
        """Wait until every rank is here. Without a time limit."""
        self.allgather(None)

    def group(self) -> Any:
        """Return the gloo group of all ranks' collectives. Created on first use, by all ranks.

        Raises:
            ValueError: when torch.distributed is not initialized and the environment does not describe it.
        """
        collectives = self._groups.everyone()
        if not isinstance(collectives, TorchCollectives):
            raise ValueError(
                f"torch.distributed is not up on rank {self.rank} of {self.size}, and gradients are shared through it. "
                "Start the ranks with torchrun, or call torch.distributed.init_process_group() before."
            )
        return collectives.group

    def _use_launcher_store(self) -> None:
        """Exchange objects through the launcher's store, so that a program can initialize torch.distributed later."""
        self._groups.use_launcher_store()

    def _with_separate_groups(self) -> DistributedContext:
        """Return the same ranks with separate groups, for another thread. Collective."""
        other = copy.copy(self)
        other._groups = self._groups.separate()
        return other


class DummyDistributedContext(DistributedContext):
    """A single process."""

    def __init__(self) -> None:
        super().__init__(rank=0, size=1, local_rank=0, local_size=1, cross_rank=0, cross_size=1)
