"""Interface of the differences between PyTorchTrial and DeepSpeedTrial; everything else is the loop's."""

from __future__ import annotations

import abc
import dataclasses
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trial_runtime.pytorch._callback import PyTorchCallback
from trial_runtime.pytorch._context import TrialContext
from trial_runtime.pytorch._data.training_data import TrainingData


@dataclasses.dataclass(frozen=True)
class Shard:
    """A rank's part in data and metrics.

    Attributes:
        rank, size: data-parallel rank and number of data-parallel ranks.
        loads: whether this rank builds data loaders.
        reports: whether its metrics count.
    """

    rank: int
    size: int
    loads: bool = True
    reports: bool = True


class Strategy(abc.ABC):
    """One kind of trial's way to train and evaluate a batch, and its state in checkpoints.

    Attributes:
        trial: the trial.
        context: its context.
        callbacks: its callbacks by name.
        micro_batches: batches of the training loader that one batch of the loop consists of.
        has_shared_disk: whether all ranks read the same folder of a checkpoint.
    """

    disable_checks_call = "context.disable_dataset_reproducibility_checks()"
    checkpoint_hooks_on_all_ranks = True

    def __init__(self, trial: Any, context: TrialContext) -> None:
        self.trial = trial
        self.context = context
        self.micro_batches = 1
        self.has_shared_disk = True
        self.callbacks: dict[str, PyTorchCallback] = {}

    @abc.abstractmethod
    def prepare(self) -> None:
        """Check that the trial is complete, once, before training.

        Raises:
            InvalidExperimentException: when it is not.
        """

    @property
    @abc.abstractmethod
    def shard(self) -> Shard:
        """Return this rank's part."""

    @property
    @abc.abstractmethod
    def evaluates_batches(self) -> bool:
        """Return whether the trial defines ``evaluate_batch``; else it defines ``evaluate_full_dataset``."""

    @property
    def evaluates_in_lockstep(self) -> bool:
        """Return whether a forward needs all ranks at once (sharded parameters)."""
        return False

    @property
    def averages_over_ranks(self) -> bool:
        """Return whether ``evaluate_batch`` gives the average over all ranks' batches, so that all make as many
        calls."""
        return False

    @abc.abstractmethod
    def train_batch(self, data: TrainingData | None) -> list[dict[str, Any]]:
        """Train one batch; the metrics of each call of the trial's ``train_batch``, none where this rank's do not
        count."""

    @abc.abstractmethod
    def evaluate_batch(self, data: Any, batch_idx: int) -> Any:
        """Call the trial's ``evaluate_batch`` once; ``data`` is an iterator of validation batches."""

    def evaluation_batches(self, length: int) -> int:
        """Return how many calls of ``evaluate_batch`` a validation loader of this length takes."""
        return length

    def skipped_steps(self) -> int:
        """Return the optimizer steps skipped so far because of overflow; without waiting for a device."""
        return 0

    def train_mode(self) -> None:
        """Set the models to train."""
        for model in self.context.models:
            model.train()

    def eval_mode(self) -> None:
        """Set the models to evaluate."""
        for model in self.context.models:
            model.eval()

    @abc.abstractmethod
    def share_buffers(self) -> None:
        """Broadcast the buffers that the next forward of each model would, for ranks that run none. Collective."""

    @abc.abstractmethod
    def checkpoint_state(self) -> dict[str, Any]:
        """Return what this rank's checkpoint hooks see, apart from ``callbacks`` and ``rng_state``."""

    @abc.abstractmethod
    def save(self, path: Path, checkpoint: dict[str, Any]) -> None:
        """Write models and the state that goes with them; called on every rank."""

    @abc.abstractmethod
    def read(self, path: Path) -> dict[str, Any]:
        """Return the dict that :meth:`save` wrote, before it is applied."""

    @abc.abstractmethod
    def load(self, path: Path, checkpoint: dict[str, Any]) -> None:
        """Apply it; called on every rank."""

    def is_warm_start(self, path: Path) -> bool:
        """Return whether a checkpoint is of the other kind of trial: its weights are loaded, and training begins
        anew."""
        del path
        return False

    def warm_start(self, path: Path) -> None:
        """Load the weights of such a checkpoint; called on every rank."""
        raise NotImplementedError

    def rank_state(self) -> dict[str, Any]:
        """Return further state of this rank, for an exact resume."""
        return {}

    def load_rank_state(self, state: dict[str, Any]) -> None:
        """Load what :meth:`rank_state` returned."""
        del state


def overrides(method: Callable[..., Any], base: type) -> bool:
    """Return whether a trial's method differs from its base class's (None in the class body counts as not defined)."""
    if method is None:
        return False
    return getattr(method, "__func__", method) is not getattr(base, method.__name__, None)


def accepts_parameter(method: Callable[..., Any], name: str, position: int) -> bool:
    """Return whether a bound method has a parameter of this name, or one at this position (not counting ``self``)."""
    parameters = list(inspect.signature(method).parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return any(p.name == name for p in parameters) or len(positional) > position
