"""The process group that ranks of a script's run have, whatever the script asks for."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from ds_verify.recorder import RANK

WORLD_SIZE = int(os.environ.get("WORLD_SIZE", "1"))


@dataclass
class ProcessGroup:
    """The script's default process group. is_used: whether the script makes one."""

    store: Path
    is_used: bool = False

    @contextlib.contextmanager
    def replaced(self) -> Iterator[None]:
        """Connect the ranks through a file, whatever address and backend the script names; leave that to the end."""
        connect = dist.init_process_group

        def init_process_group(*_: Any, **__: Any) -> None:
            self.is_used = True
            if not dist.is_initialized():
                backend = "nccl" if torch.cuda.is_available() else "gloo"
                connect(backend, f"file://{self.store}", timedelta(minutes=5), world_size=WORLD_SIZE, rank=RANK)

        def spawn(function: Any, args: Any = (), *_: Any, **__: Any) -> None:
            torch.manual_seed(torch.Generator().initial_seed())  # as in a new process, and as run_worker() does
            function(RANK, *args)  # the ranks are there already

        with (
            mock.patch.object(dist, "init_process_group", init_process_group),
            mock.patch.object(dist, "destroy_process_group", lambda *_, **__: None),
            mock.patch.object(torch.multiprocessing, "spawn", spawn),
        ):
            yield
