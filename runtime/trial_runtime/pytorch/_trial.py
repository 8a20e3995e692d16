"""The trial in which the loop's batches are trained by the trial's own PyTorch code."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any, ClassVar

import torch.utils.data

from trial_runtime.pytorch._callback import PyTorchCallback
from trial_runtime.pytorch._data.loader import DataLoader, TorchData, data_length
from trial_runtime.pytorch._pytorch_context import PyTorchTrialContext
from trial_runtime.pytorch._reducer import Reducer

if TYPE_CHECKING:
    from trial_runtime.pytorch._controller import TrialController


class PyTorchTrial(abc.ABC):
    """A training task in PyTorch: models, data, and what to do with a batch.

    Subclass it, wrap models and optimizers in ``__init__``, and define ``train_batch``, the two data loaders and one of
    ``evaluate_batch`` and ``evaluate_full_dataset``.
    """

    trial_controller_class: ClassVar[type[TrialController]]
    trial_context_class = PyTorchTrialContext

    @abc.abstractmethod
    def __init__(self, context: PyTorchTrialContext) -> None:
        """Make models and optimizers and wrap them: ``context.wrap_model``, ``context.wrap_optimizer``."""

    @abc.abstractmethod
    def train_batch(self, batch: TorchData, epoch_idx: int, batch_idx: int) -> torch.Tensor | dict[str, Any]:
        """Train one batch: forward, ``context.backward(loss)``, ``context.step_optimizer(optimizer)``.

        Called with keywords.

        Args:
            batch: a batch of the training loader, on the device.
            epoch_idx: index of the epoch.
            batch_idx: index of the batch from the start of training.

        Returns:
            metrics; a scalar tensor is the metric ``loss``.
        """

    @abc.abstractmethod
    def build_training_data_loader(self) -> DataLoader | torch.utils.data.DataLoader[Any]:
        """Build the loader of training data."""

    @abc.abstractmethod
    def build_validation_data_loader(self) -> DataLoader | torch.utils.data.DataLoader[Any]:
        """Build the loader of validation data."""

    def build_callbacks(self) -> dict[str, PyTorchCallback]:
        """Return callbacks by name; a callback's state is saved under its name."""
        return {}

    def evaluate_batch(self, batch: TorchData, batch_idx: int) -> dict[str, Any]:
        """Return the metrics of one validation batch, without gradients; ``batch_idx`` may be left out of the
        signature."""
        raise NotImplementedError

    def evaluation_reducer(self) -> Reducer | dict[str, Reducer]:
        """Return how the metrics of :meth:`evaluate_batch` are reduced: for all, or for each by name."""
        return Reducer.AVG

    def evaluate_full_dataset(self, data_loader: torch.utils.data.DataLoader[Any]) -> dict[str, Any]:
        """Return validation metrics of the whole data, instead of :meth:`evaluate_batch`. Runs on the chief alone.

        Args:
            data_loader: the validation loader, not shared among ranks; batches are not on the device.
        """
        raise NotImplementedError

    def get_batch_length(self, batch: Any) -> int:
        """Return the number of samples in a batch; override it for batches of other types."""
        return data_length(batch)
