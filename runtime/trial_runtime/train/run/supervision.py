"""Processes that end when the one that started them is killed."""

from __future__ import annotations

import os
import select
import signal
import threading


def terminate_with(supervisor: str | None) -> None:
    """Get SIGTERM, once, when the process ``supervisor`` ends, so that none is left running. Linux only.

    Args:
        supervisor: a process id; None: nobody watches this process.
    """
    if supervisor is None or not hasattr(os, "pidfd_open"):
        return
    # Not PR_SET_PDEATHSIG: it signals once for each thread of the parent, and a second signal means "at once".
    try:
        watched = os.pidfd_open(int(supervisor))
    except ProcessLookupError:
        os.kill(os.getpid(), signal.SIGTERM)
        return
    except OSError:  # a kernel without it
        return

    def watch() -> None:
        select.select([watched], [], [])
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="ds-train-watch", daemon=True).start()
