"""Collectives of Python objects: over torch.distributed, or over a key-value store where it is not initialized."""

from __future__ import annotations

import datetime
import hmac
import os
import pickle
from typing import Any, Protocol

import torch
import torch.distributed as dist

from trial_runtime._cluster_info import SECRET_VARIABLE
from trial_runtime._ranks import LOOPBACK
from trial_runtime.core._loopback_store import serve_on_loopback

# Ranks may wait while the chief evaluates a whole dataset or writes a checkpoint: that is no failure.
TIMEOUT = datetime.timedelta(days=30)
_CONNECT_TIMEOUT = datetime.timedelta(minutes=5)
_SIGNATURE_BYTES = 32


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
        self._seal = Seal("group")
        self._round = 0

    def allgather(self, stuff: Any) -> list[Any]:
        size, rank, now = dist.get_world_size(self.group), dist.get_rank() - self._first, self._round
        self._round += 1
        mine = _as_tensor(self._seal.signed(pickle.dumps(stuff), now, rank))
        lengths = [torch.zeros(1, dtype=torch.long) for _ in range(size)]
        dist.all_gather(lengths, torch.tensor([len(mine)]), group=self.group)
        longest = int(max(lengths))
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: len(mine)] = mine
        messages = [torch.empty(longest, dtype=torch.uint8) for _ in range(size)]
        dist.all_gather(messages, padded, group=self.group)
        contents = [self._content(messages[rank][: int(lengths[rank])], now, rank) for rank in range(size)]
        return [pickle.loads(content) for content in contents]

    def broadcast(self, stuff: Any) -> Any:
        now, is_source = self._round, dist.get_rank() == self._first
        self._round += 1
        message = _as_tensor(self._seal.signed(pickle.dumps(stuff), now, 0)) if is_source else None
        length = torch.tensor([0 if message is None else len(message)])
        dist.broadcast(length, src=self._first, group=self.group)
        if message is None:
            message = torch.empty(int(length), dtype=torch.uint8)
        dist.broadcast(message, src=self._first, group=self.group)
        return stuff if is_source else pickle.loads(self._content(message, now, 0))

    def _content(self, message: torch.Tensor, now: int, rank: int) -> bytes:
        return self._seal.verified(message.numpy().tobytes(), now, rank)


def _as_tensor(content: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


class Seal:
    """Signatures of messages among the ranks of a run: objects are unpickled only from those that have the secret.

    Args:
        name: of the collectives, part of what is signed.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._secret = os.environ.get(SECRET_VARIABLE, "").encode()

    def signed(self, content: bytes, now: int, rank: int) -> bytes:
        """Return a message with its signature, as this rank's of round ``now``."""
        place = f"{self._name}/{now}/{rank}/".encode()
        return hmac.digest(self._secret, place + content, "sha256") + content

    def verified(self, message: bytes, now: int, rank: int) -> bytes:
        """Return the content of a message.

        Raises:
            RuntimeError: the signature is not that of this rank's message of round ``now``.
        """
        content = message[_SIGNATURE_BYTES:]
        if not hmac.compare_digest(self.signed(content, now, rank), message):
            raise RuntimeError(
                f"A message from rank {rank} has a wrong signature, and was not read: it is not from this run, or the "
                f"ranks have different values of {SECRET_VARIABLE}."
            )
        return content


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
        self._seal = Seal(name)
        self._rank = rank
        self._size = size
        self._round = 0

    def allgather(self, stuff: Any) -> list[Any]:
        store, now = self._store, self._round
        self._round += 1
        store.set(f"{now}/{self._rank}", self._seal.signed(pickle.dumps(stuff), now, self._rank))
        gathered = [
            pickle.loads(self._seal.verified(store.get(f"{now}/{rank}"), now, rank)) for rank in range(self._size)
        ]
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
