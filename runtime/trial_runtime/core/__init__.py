"""Core API: the ranks of a program, their collectives, and the run that they belong to."""

from trial_runtime.core._checkpoint import CheckpointContext, DownloadMode
from trial_runtime.core._context import Context, ExperimentalCoreContext, ProfilerContext, _dummy_init, init
from trial_runtime.core._distributed import DistributedContext, DummyDistributedContext
from trial_runtime.core._preempt import PreemptContext, PreemptMode
from trial_runtime.core._searcher import SearcherContext, SearcherMode, SearcherOperation, Unit
from trial_runtime.core._train import EarlyExitReason, TensorboardMode, TrainContext

__all__ = [
    "CheckpointContext",
    "Context",
    "DistributedContext",
    "DownloadMode",
    "DummyDistributedContext",
    "EarlyExitReason",
    "ExperimentalCoreContext",
    "PreemptContext",
    "PreemptMode",
    "ProfilerContext",
    "SearcherContext",
    "SearcherMode",
    "SearcherOperation",
    "TensorboardMode",
    "TrainContext",
    "Unit",
    "_dummy_init",
    "init",
]
