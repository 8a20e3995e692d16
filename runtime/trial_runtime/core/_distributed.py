"""The ranks of a run, and collectives of Python objects among them."""

from __future__ import annotations

import datetime
import os
from typing import Any, NoReturn

import torch
import torch.distributed as dist

# Ranks may wait while the chief evaluates a whole dataset or writes a checkpoint: that is no failure.
_PATIENCE = datetime.timedelta(days=30)


class DistributedContext:
    """Rank, size and object collectives of a run.

    The collectives go over torch.distributed, in a gloo group of their own, so they never touch the accelerator and
    waiting in them does not time out. Every rank of the run must make the same calls in the same order.

    Args:
        rank: index of this process in the run.
        size: number of processes in the run.
        local_rank: index of this process on its node.
        local_size: number of processes on this node.
        cross_rank: index of this node.
        cross_size: number of nodes.
        chief_ip: address of rank 0; kept for code that gives it, torch.distributed has its own rendezvous.
        pub_port, pull_port, port_offset, force_tcp: accepted and not used.

    Raises:
        ValueError: when only some of the six numbers are given, or they contradict each other.
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
        pub_port: int = 0,
        pull_port: int = 0,
        port_offset: int = 0,
        force_tcp: bool = False,
    ) -> None:
        del pub_port, pull_port, port_offset, force_tcp
        numbers = (rank, size, local_rank, local_size, cross_rank, cross_size)
        if any(number is None for number in numbers):
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
        self._group: Any = None
        self._local_group: Any = None

    @classmethod
    def from_torch_distributed(cls, chief_ip: str | None = None) -> DistributedContext:
        """The context that ``torchrun`` (or an initialised torch.distributed) describes.

        Raises:
            ValueError: when the process was started by neither.
        """
        return cls._from_environment(chief_ip, "from_torch_distributed", "torchrun")

    @classmethod
    def from_deepspeed(cls, chief_ip: str | None = None) -> DistributedContext:
        """The context that the ``deepspeed`` launcher describes; works under ``torchrun`` too.

        Raises:
            ValueError: when the process was started by neither.
        """
        return cls._from_environment(chief_ip, "from_deepspeed", "deepspeed or torchrun")

    @classmethod
    def from_horovod(cls, hvd: Any = None, chief_ip: str | None = None) -> NoReturn:
        """Not available: this runtime's ranks talk through torch.distributed."""
        del hvd, chief_ip
        raise ValueError(
            "Horovod is not supported. Start the ranks with torchrun and use "
            "DistributedContext.from_torch_distributed()."
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
            chief_ip=chief_ip,
        )

    def get_rank(self) -> int:
        """Index of this process in the run."""
        return self.rank

    def get_local_rank(self) -> int:
        """Index of this process on its node."""
        return self.local_rank

    def get_size(self) -> int:
        """Number of processes in the run."""
        return self.size

    def get_num_agents(self) -> int:
        """Number of nodes in the run."""
        return self.cross_size

    def close(self) -> None:
        """Let go of the groups. Further collectives would make new ones."""
        self._group = self._local_group = None

    def __enter__(self) -> DistributedContext:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def gather(self, stuff: Any) -> list[Any] | None:
        """Send ``stuff`` (picklable) to the chief; there a list ordered by rank comes back, elsewhere None."""
        return self._gather(stuff, self.size, self._is_chief, local=False)

    def gather_local(self, stuff: Any) -> list[Any] | None:
        """:meth:`gather` among the ranks of this node, to its local chief."""
        return self._gather(stuff, self.local_size, self._is_local_chief, local=True)

    def allgather(self, stuff: Any) -> list[Any]:
        """Every rank's ``stuff`` (picklable), ordered by rank, on every rank."""
        return self._allgather(stuff, self.size, local=False)

    def allgather_local(self, stuff: Any) -> list[Any]:
        """:meth:`allgather` among the ranks of this node."""
        return self._allgather(stuff, self.local_size, local=True)

    def broadcast(self, stuff: Any) -> Any:
        """The chief's ``stuff`` (picklable) on every rank."""
        return self._broadcast(stuff, self.size, self._is_chief, local=False)

    def broadcast_local(self, stuff: Any = None) -> Any:
        """The local chief's ``stuff`` on every rank of this node."""
        return self._broadcast(stuff, self.local_size, self._is_local_chief, local=True)

    def barrier(self) -> None:
        """Wait until every rank is here. Without a time limit."""
        self.allgather(None)

    def _gather(self, stuff: Any, size: int, is_chief: bool, local: bool) -> list[Any] | None:
        gathered = self._allgather(stuff, size, local)
        return gathered if is_chief else None

    def _allgather(self, stuff: Any, size: int, local: bool) -> list[Any]:
        if size == 1:
            return [stuff]
        gathered: list[Any] = [None] * size
        dist.all_gather_object(gathered, stuff, group=self.group(local))
        return gathered

    def _broadcast(self, stuff: Any, size: int, is_chief: bool, local: bool) -> Any:
        if size == 1:
            return stuff
        box = [stuff if is_chief else None]
        source = self.rank - self.local_rank if local else 0
        dist.broadcast_object_list(box, src=source, group=self.group(local))
        return box[0]

    def group(self, local: bool = False) -> Any:
        """The gloo group of these collectives: all ranks, or those of this node. Made on first use, by all ranks."""
        if self._group is None:
            if not dist.is_initialized():
                dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
            if (dist.get_rank(), dist.get_world_size()) != (self.rank, self.size):
                raise ValueError(
                    f"The DistributedContext says rank {self.rank} of {self.size}, torch.distributed says rank "
                    f"{dist.get_rank()} of {dist.get_world_size()}. Give both the same."
                )
            self._group = dist.new_group(backend="gloo", timeout=_PATIENCE)
            if self.cross_size > 1:
                for node in range(self.cross_size):
                    first = node * self.local_size
                    ranks = list(range(first, min(first + self.local_size, self.size)))
                    group = dist.new_group(ranks, backend="gloo", timeout=_PATIENCE)
                    if node == self.cross_rank:
                        self._local_group = group
            else:
                self._local_group = self._group
        return self._local_group if local else self._group


class DummyDistributedContext(DistributedContext):
    """One process on its own."""

    def __init__(self) -> None:
        super().__init__(rank=0, size=1, local_rank=0, local_size=1, cross_rank=0, cross_size=1)
