"""The runtime that trains migrated trials on plain torch and DeepSpeed.

Its public module paths are those of ``determined``: ``trial_runtime.pytorch``, ``trial_runtime.pytorch.deepspeed``,
``trial_runtime.core`` and the names below. Importing this package imports no torch; the submodules are loaded on first
use, so ``import trial_runtime as det; det.pytorch.Batch(3)`` works.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from trial_runtime import errors, gpu
from trial_runtime._cluster_info import ClusterInfo, TrialInfo, get_cluster_info
from trial_runtime._import_from_path import import_from_path
from trial_runtime._search_space import Categorical, Constant, Double, Integer, Log
from trial_runtime.errors import InvalidHP

if TYPE_CHECKING:
    from trial_runtime import common, core, experimental, horovod, pytorch, tensorboard, util
    from trial_runtime.pytorch import TrialContext

__version__ = "0.1.0"

LOG_FORMAT = "%(levelname)s: [%(process)s] %(name)s: %(message)s"
"""Format of a log line, for ``logging.basicConfig(format=...)``: level, process id, logger, message."""

_LAZY = ("common", "core", "experimental", "horovod", "pytorch", "tensorboard", "util")

__all__ = [
    "LOG_FORMAT",
    "Categorical",
    "ClusterInfo",
    "Constant",
    "Double",
    "Integer",
    "InvalidHP",
    "Log",
    "TrialContext",
    "TrialInfo",
    "common",
    "core",
    "errors",
    "experimental",
    "get_cluster_info",
    "gpu",
    "horovod",
    "import_from_path",
    "pytorch",
    "tensorboard",
    "util",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return importlib.import_module(f"{__name__}.{name}")
    if name == "TrialContext":
        return importlib.import_module(f"{__name__}.pytorch").TrialContext
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
