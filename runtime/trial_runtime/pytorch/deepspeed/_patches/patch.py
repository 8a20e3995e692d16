"""The form of a patch: what it replaces in DeepSpeed, why, and where it was needed."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import deepspeed

from trial_runtime import core

NOT_REPORTED = "not reported"


@dataclasses.dataclass(frozen=True)
class NewEngine:
    """Engine that is being wrapped, as its patches see it.

    Attributes:
        engine: the engine.
        engines: the trial's wrapped engines in order; this one follows them once its patches are applied.
        distributed: the ranks.
    """

    engine: Any
    engines: Sequence[Any]
    distributed: core.DistributedContext

    @property
    def is_pipeline(self) -> bool:
        """True for a pipeline, which calls backward and step itself."""
        return is_pipeline(self.engine)

    @property
    def stage(self) -> int:
        """The ZeRO stage."""
        return int(self.engine.zero_optimization_stage())


def is_pipeline(engine: Any) -> bool:
    """Return whether an engine is a pipeline."""
    return isinstance(engine, deepspeed.PipelineEngine)


@dataclasses.dataclass(frozen=True)
class Patch:
    """Replacement of an inner part of DeepSpeed. Exactly one of the four ways to apply it is set.

    Attributes:
        name: the module's.
        why: what DeepSpeed does without it, in one sentence.
        versions: the versions of DeepSpeed in which the fault was seen.
        issue: DeepSpeed's issue about it.
        in_process: a context manager, entered when the package is imported.
        in_run: a context manager, entered while a run lasts.
        in_load: a context manager, entered while a checkpoint is loaded into one plain process.
        on_engine: called with each engine that a trial wraps.
    """

    name: str
    why: str
    versions: str = "0.19.8"
    issue: str = NOT_REPORTED
    in_process: Callable[[], AbstractContextManager[None]] | None = None
    in_run: Callable[[], AbstractContextManager[None]] | None = None
    in_load: Callable[[], AbstractContextManager[None]] | None = None
    on_engine: Callable[[NewEngine], None] | None = None


@contextlib.contextmanager
def replaced(name: str, change: Callable[[Any], Any], *owners: Any) -> Iterator[None]:
    """Replace a function in these modules or classes by what ``change`` makes of each."""
    with contextlib.ExitStack() as stack:
        for owner in owners:
            stack.enter_context(mock.patch.object(owner, name, change(getattr(owner, name))))
        yield
