"""Report operations that DeepSpeed compiles when a config asks for them, because the wait looks like a hang."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from deepspeed.ops.op_builder.builder import OpBuilder

from trial_runtime.pytorch.deepspeed._patches.patch import Patch

logger = logging.getLogger("trial_runtime.pytorch.deepspeed")
_STARTED = time.time()


@contextlib.contextmanager
def apply() -> Iterator[None]:
    """Let the first rank of a node log that an operation is compiled, or what it waits for."""
    original = OpBuilder.jit_load

    def jit_load(self: Any, *args: Any, **kwargs: Any) -> Any:
        if os.environ.get("LOCAL_RANK", "0") == "0":
            warn_of_compilation(self.name)
        return original(self, *args, **kwargs)

    with mock.patch.object(OpBuilder, "jit_load", jit_load):
        yield


def warn_of_compilation(name: str) -> None:
    """Log what loading the operation ``name`` is going to take; nothing when it was compiled before."""
    folder, lock = folder_of(name), lock_of(name)
    if lock.exists() and lock.stat().st_mtime < _STARTED:  # not another rank's of this run
        logger.warning(
            f"DeepSpeed waits for another process that compiles {name}. If there is none, one was killed while it "
            f"compiled: remove {lock}, and this run continues."
        )
    elif not is_compiled(name):
        logger.warning(f"DeepSpeed compiles {name}, which takes a minute or more, once (it is kept in {folder}).")


def is_compiled(name: str) -> bool:
    """Return whether the operation was compiled before."""
    return (folder_of(name) / f"{name}.so").exists()


def lock_of(name: str) -> Path:
    """Return the file that exists while a process compiles the operation, or after one was killed while it did."""
    return folder_of(name) / "lock"


def folder_of(name: str) -> Path:
    """Return the folder in which torch keeps the extension ``name``; it may not exist yet."""
    from torch.utils import cpp_extension

    if own := os.environ.get("TORCH_EXTENSIONS_DIR"):
        return Path(own) / name
    root = Path(cpp_extension.get_default_build_root())
    found = sorted(root.glob(f"py{sys.version_info.major}{sys.version_info.minor}*/{name}"))
    return found[0] if found else root


PATCH = Patch(
    "jit_notice",
    "DeepSpeed compiles an operation for minutes, or waits for the lock of a killed process, without a message.",
    in_run=apply,
)
