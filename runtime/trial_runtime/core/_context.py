"""The run that the contexts of trials are made from."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trial_runtime._storage.remote import is_url, with_environment_options
from trial_runtime.core._distributed import DistributedContext, DummyDistributedContext

if TYPE_CHECKING:
    from trial_runtime.pytorch._loop.settings import RunSettings


@dataclasses.dataclass
class Context:
    """A run: its ranks, and where its files go. ``pytorch.init()`` makes one, unit tests use :func:`_dummy_init`.

    Attributes:
        distributed: the ranks of the run.
        settings: directories of the run, and ``ds-train``'s description of it.
    """

    distributed: DistributedContext
    settings: RunSettings

    def start(self) -> None:
        """Start using it; there is nothing to initialize."""

    def close(self) -> None:
        """Release the ranks' groups."""
        self.distributed.close()

    def __enter__(self) -> Context:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _dummy_init(
    *,
    distributed: DistributedContext | None = None,
    checkpoint_storage: str | Path | dict[str, Any] | None = None,
    tensorboard_path: Path | None = None,
    preempt_mode: Any = None,
) -> Context:
    """Make a run without ``init()``, for a trial's context in a unit test.

    Args:
        distributed: its ranks; by default this process alone.
        checkpoint_storage: directory for checkpoints, a URL of a storage, or a dict as in an experiment config. By
            default ``checkpoints``.
        tensorboard_path: directory for TensorBoard files. By default ``tensorboard``.
        preempt_mode: accepted and not used.
    """
    from trial_runtime.pytorch._loop.settings import RunSettings

    del preempt_mode
    config = checkpoint_storage if isinstance(checkpoint_storage, dict) else None
    settings = RunSettings.collect(None, {"checkpoint_storage": config} if config else None, None)
    if config is None and checkpoint_storage is not None:
        assert not isinstance(checkpoint_storage, dict)
        if is_url(str(checkpoint_storage)):
            settings.remote = with_environment_options(str(checkpoint_storage))
        else:
            settings.checkpoint_directory = Path(checkpoint_storage)
    settings.tensorboard = tensorboard_path
    return Context(distributed or DummyDistributedContext(), settings)
