"""Collectives of Python objects: over torch.distributed, or over a key-value store where it is not initialized."""

from __future__ import annotations

import datetime
import hmac
import os
import pickle
from typing import Any, Protocol

import torch.distributed as dist

from trial_runtime.core._loopback_store import LOOPBACK, serve_on_loopback

# Ranks may wait while the chief evaluates a whole dataset or writes a checkpoint: that is no failure.
TIMEOUT = datetime.timedelta(days=30)
_CONNECT_TIMEOUT = datetime.timedelta(minutes=5)
_SIGNATURE_BYTES = 32
SECRET_VARIABLE = "TRIAL_RUNTIME_SECRET"
"""Environment variable with a secret that all ranks share; what they exchange through a store is signed with it."""


class ObjectCollectives(Protocol):
    """Collectives among some ranks, which all make the same calls in the same order."""

    def allgather(self, stuff: Any) -> list[Any]:
        """Return every rank's ``stuff`` (picklable), ordered by rank, on every rank."""

    def broadcast(self, stuff: Any) -> Any:
        """Return the first rank's ``stuff`` (picklable) on every rank."""


class TorchCollectives:
    """Collectives over a process group of torch.distributed (gloo, so the accelerator is not touched).

    Args:
        group: the process group.
        first: global rank of the group's first rank.
    """

    def __init__(self, group: Any, first: int = 0) -> None:
        self.group = group
        self._first = first

    def allgather(self, stuff: Any) -> list[Any]:
        gathered: list[Any] = [None] * dist.get_world_size(self.group)
        dist.all_gather_object(gathered, stuff, group=self.group)
        return gathered

    def broadcast(self, stuff: Any) -> Any:
        box = [stuff if dist.get_rank() == self._first else None]
        dist.broadcast_object_list(box, src=self._first, group=self.group)
        return box[0]


class StoreCollectives:
    """Collectives over a store that one rank serves; for ranks without a process group, also threads of one process.

    Args:
        store: a store of torch.distributed.
        name: of these collectives, unique in the store's server.
        rank, size: this rank among the ``size`` ranks of the collectives.
    """

    def __init__(self, store: Any, name: str, rank: int, size: int) -> None:
        stores: Any = dist  # torch does not list its stores among its exports
        self._store = stores.PrefixStore(name, store)
        self._name = name
        self._secret = os.environ.get(SECRET_VARIABLE, "").encode()
        self._rank = rank
        self._size = size
        self._round = 0

    def allgather(self, stuff: Any) -> list[Any]:
        store, now = self._store, self._round
        self._round += 1
        store.set(f"{now}/{self._rank}", self._signed(pickle.dumps(stuff), now, self._rank))
        gathered = [pickle.loads(self._verified(store.get(f"{now}/{rank}"), now, rank)) for rank in range(self._size)]
        if now > 0:  # a round that all have left, as all came to this one
            store.delete_key(f"{now - 1}/{self._rank}")
            store.delete_key(f"{now - 1}/left/{self._rank}")
        # The rank that serves the store may go away after any round: it leaves last. A store answers no set, so that
        # nothing is on its way to the others then.
        if self._rank > 0:
            store.set(f"{now}/left/{self._rank}", b"")
        else:
            store.wait([f"{now}/left/{rank}" for rank in range(1, self._size)])
        return gathered

    def broadcast(self, stuff: Any) -> Any:
        return self.allgather(stuff if self._rank == 0 else None)[0]

    def _signed(self, content: bytes, now: int, rank: int) -> bytes:
        place = f"{self._name}/{now}/{rank}/".encode()
        return hmac.digest(self._secret, place + content, "sha256") + content

    def _verified(self, message: bytes, now: int, rank: int) -> bytes:
        content = message[_SIGNATURE_BYTES:]
        if not hmac.compare_digest(self._signed(content, now, rank), message):
            raise RuntimeError(
                f"A message from rank {rank} has a wrong signature, and was not read: it is not from this run, or the "
                f"ranks have different values of {SECRET_VARIABLE}."
            )
        return content


def connect_store(address: str, port: int, rank: int, size: int) -> Any:
    """Connect to the store that rank 0 serves at ``address:port``; at 127.0.0.1 only this machine reaches it.

    Raises:
        ValueError: the ranks are on several machines and share no secret: anyone who reaches the port could send
            objects that run code.
        torch.distributed.DistError: rank 0 does not answer within five minutes, or cannot serve at this port.
    """
    stores: Any = dist  # torch does not list its stores among its exports
    if address == LOOPBACK and rank == 0:
        store = serve_on_loopback(port, size, _CONNECT_TIMEOUT)
    elif address != LOOPBACK and not os.environ.get(SECRET_VARIABLE):
        raise ValueError(
            f"The ranks are on several machines and exchange objects through a store at {address}:{port}. Set the "
            f"environment variable {SECRET_VARIABLE} to the same random text on each, or start them with torchrun."
        )
    else:
        store = stores.TCPStore(address, port, size, rank == 0, _CONNECT_TIMEOUT, wait_for_workers=False)
    store.set_timeout(TIMEOUT)
    return store


def connect_to_served_store(address: str, port: int, size: int) -> Any:
    """Connect to the store that a launcher serves for its ranks."""
    stores: Any = dist  # torch does not list its stores among its exports
    store = stores.TCPStore(address, port, size, False, _CONNECT_TIMEOUT, wait_for_workers=False)
    store.set_timeout(TIMEOUT)
    return store
