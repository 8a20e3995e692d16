"""Rendezvous of torch's elastic launcher whose store only this machine reaches."""

from __future__ import annotations

from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    rendezvous_handler_registry,
)
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

from trial_runtime.core._loopback_store import LOOPBACK, serve_on_loopback

NAME = "ds-train-loopback"


class LoopbackRendezvous(StaticTCPRendezvous):
    """Rendezvous of the ranks of one machine: a store at 127.0.0.1, at a free port."""

    def get_backend(self) -> str:
        return NAME

    def next_rendezvous(self) -> RendezvousInfo:
        if self._store is None:
            store = serve_on_loopback(0, None, self.timeout)
            self._store, self.master_port = store, store.port
        return super().next_rendezvous()


def register() -> None:
    """Make the rendezvous known to torch as :data:`NAME`."""
    rendezvous_handler_registry.register(NAME, _make)


def _make(parameters: RendezvousParameters) -> RendezvousHandler:
    timeout_seconds = 600
    return LoopbackRendezvous(LOOPBACK, 0, 0, 1, parameters.run_id, timeout_seconds)
