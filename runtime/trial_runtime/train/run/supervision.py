"""Processes that end when the one that started them is killed."""

from __future__ import annotations

import os
import select
import signal
import threading
import time

GRACE_SECONDS = 600
"""How long ranks have for their last save, in which large models take minutes."""


def terminate_with(*supervisors: str | None) -> None:
    """Get SIGTERM, once, when the first of the processes ``supervisors`` ends, so that none is left running.

    Linux only.

    A process that is still there :data:`GRACE_SECONDS` later, because it waits for ranks that are gone, is killed.

    Args:
        supervisors: process ids; None: nobody watches this process.
    """
    given = [int(supervisor) for supervisor in supervisors if supervisor is not None]
    if not given or not hasattr(os, "pidfd_open"):
        return
    # Not PR_SET_PDEATHSIG: it signals once for each thread of the parent, and a second signal means "at once".
    watched: list[int] = []
    try:
        for supervisor in given:
            watched.append(os.pidfd_open(supervisor))
    except ProcessLookupError:
        watched.clear()  # it has ended already
    except OSError:  # a kernel without it
        return

    def watch() -> None:
        if watched:
            select.select(watched, [], [])
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE_SECONDS)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="ds-train-watch", daemon=True).start()
