"""The trial in which DeepSpeed engines train."""

from __future__ import annotations

import abc
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch.utils.data

from trial_runtime.errors import InvalidCheckpointException
from trial_runtime.pytorch._callback import PyTorchCallback
from trial_runtime.pytorch._data.loader import DataLoader, TorchData, data_length
from trial_runtime.pytorch._reducer import Reducer
from trial_runtime.pytorch.deepspeed._context import DeepSpeedTrialContext

if TYPE_CHECKING:
    from trial_runtime.pytorch._controller import TrialController


class DeepSpeedTrial(abc.ABC):
    """A training task whose models are DeepSpeed engines.

    Subclass it; make engines with ``deepspeed.initialize`` in ``__init__`` and wrap them; define ``train_batch``, the
    two data loaders and one of ``evaluate_batch`` and ``evaluate_full_dataset``.
    """

    trial_controller_class: ClassVar[type[TrialController]]
    trial_context_class = DeepSpeedTrialContext

    @abc.abstractmethod
    def __init__(self, context: DeepSpeedTrialContext) -> None:
        """Make engines and wrap them: ``context.wrap_model_engine(engine)``."""

    @abc.abstractmethod
    def train_batch(
        self, dataloader_iter: Iterator[TorchData] | None, epoch_idx: int, batch_idx: int
    ) -> torch.Tensor | dict[str, Any]:
        """Train one micro-batch: get it, forward, ``engine.backward(loss)``, ``engine.step()``.

        Called ``gradient_accumulation_steps`` times for each batch, with the same ``batch_idx``; with a pipeline
        engine, or after ``context.disable_auto_grad_accumulation()``, once. A pipeline engine does all by
        ``engine.train_batch(dataloader_iter)``.

        Args:
            dataloader_iter: iterator of this rank's training batches (not on the device); None on a rank without data.
            epoch_idx: index of the epoch.
            batch_idx: index of the batch (optimizer step) from the start of training.

        Returns:
            metrics; a scalar tensor is the metric ``loss``.
        """

    @abc.abstractmethod
    def build_training_data_loader(self) -> DataLoader | torch.utils.data.DataLoader[Any] | None:
        """Return the loader of training data, in micro-batches."""

    @abc.abstractmethod
    def build_validation_data_loader(self) -> DataLoader | torch.utils.data.DataLoader[Any] | None:
        """Return the loader of validation data."""

    def build_callbacks(self) -> dict[str, PyTorchCallback]:
        """Return callbacks by name; a callback's state is saved under its name."""
        return {}

    def evaluate_batch(self, dataloader_iter: Iterator[TorchData] | None, batch_idx: int) -> dict[str, Any]:
        """Return the metrics of one validation batch, taken from the iterator; ``batch_idx`` may be omitted."""
        raise NotImplementedError

    def evaluate_full_dataset(self, data_loader: torch.utils.data.DataLoader[Any]) -> dict[str, Any]:
        """Return validation metrics of the whole data, instead of :meth:`evaluate_batch`.

        Gets a loader that is not shared. It runs on the chief alone while the other ranks wait; at ZeRO stage 3, where
        a forward needs all ranks, it runs on all of them and the chief's metrics count.
        """
        raise NotImplementedError

    def evaluation_reducer(self) -> Reducer | dict[str, Reducer]:
        """Return how the metrics of :meth:`evaluate_batch` are reduced: for all, or for each by name."""
        return Reducer.AVG

    def save(self, context: DeepSpeedTrialContext, path: Path) -> None:
        """Save the engines; runs on every rank. Override it to save more."""
        for index, engine in enumerate(context.models):
            engine.save_checkpoint(str(path), tag=f"model{index}", save_latest=False)

    def load(self, context: DeepSpeedTrialContext, load_path: Path) -> None:
        """Load what :meth:`save` saved; runs on every rank."""
        for index, engine in enumerate(context.models):
            try:
                loaded, _ = engine.load_checkpoint(str(load_path), tag=f"model{index}")
            except AssertionError as error:
                raise AssertionError(f"Failed to load deepspeed checkpoint {load_path} (model{index}).") from error
            if loaded is None:
                raise InvalidCheckpointException(
                    f"Checkpoint {load_path} has nothing for engine {index} (model{index})."
                )

    def get_batch_length(self, batch: Any) -> int:
        """Return the number of samples in a batch; override it for batches of your own type."""
        return data_length(batch)
