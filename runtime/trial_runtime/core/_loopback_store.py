"""Key-value store of torch.distributed that only this machine reaches."""

from __future__ import annotations

import datetime
import socket
from typing import Any

import torch.distributed as dist

from trial_runtime._ranks import LOOPBACK


def serve_on_loopback(port: int, size: int | None, timeout: datetime.timedelta) -> Any:
    """Serve a store at 127.0.0.1. torch's own server listens on every address, whatever host it is given.

    Args:
        port: the port; 0 takes a free one (``store.port``).
        size: processes that use the store; None when unknown.
        timeout: of waiting for a key.

    Raises:
        OSError: the port is in use.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((LOOPBACK, port))
    except OSError:
        listener.close()
        raise
    port = listener.getsockname()[1]
    stores: Any = dist  # torch does not list its stores among its exports
    return stores.TCPStore(
        LOOPBACK,
        port,
        size,
        True,
        timeout,
        wait_for_workers=False,
        multi_tenant=False,
        master_listen_fd=listener.detach(),
    )
