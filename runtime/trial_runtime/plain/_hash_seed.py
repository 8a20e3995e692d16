"""One hash seed for all ranks, so that sets have one order on them."""

from __future__ import annotations

import os
import sys
from multiprocessing import parent_process

_VARIABLE = "PYTHONHASHSEED"


def share_hash_seed() -> None:
    """Run this process's command again where Python hashes strings otherwise in each rank, as it decides at its start.

    A vocabulary that is numbered in the order of a set, or a split by ``hash(name)``, would be another one on each
    rank, and all train one model. What the command has done before it does twice. With ``PYTHONHASHSEED`` set to a
    number, as in ``PYTHONHASHSEED=0 torchrun ...``, or with one rank, nothing happens, nor in a process that a rank
    has started.
    """
    is_shared = os.environ.get(_VARIABLE, "random") != "random" or int(os.environ.get("WORLD_SIZE", "1")) == 1
    if is_shared or parent_process() is not None:
        return
    os.environ[_VARIABLE] = "0"
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
