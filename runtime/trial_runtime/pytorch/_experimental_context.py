"""Switches of a PyTorchTrial: mixed precision, batches that stay where they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from trial_runtime.pytorch._pytorch_context import PyTorchTrialContext


class PyTorchExperimentalContext:
    """Switches of a PyTorchTrial, as ``context.experimental``."""

    def __init__(self, parent: PyTorchTrialContext) -> None:
        self._parent = parent
        self._auto_amp = False
        self._auto_to_device = True

    def use_amp(self) -> None:
        """Train in mixed precision: autocast in the models' forward, scaled losses. Call it before ``wrap_model``."""
        device = self._parent.device.type
        self._parent.wrap_scaler(torch.amp.GradScaler(device, enabled=device == "cuda"))
        self._auto_amp = True

    def disable_dataset_reproducibility_checks(self) -> None:
        """Allow other loaders; see :meth:`TrialContext.disable_dataset_reproducibility_checks`."""
        self._parent.disable_dataset_reproducibility_checks()

    def wrap_reducer(self, *args: Any, **kwargs: Any) -> Any:
        """Register a reducer; see :meth:`PyTorchTrialContext.wrap_reducer`, its name since 0.15."""
        return self._parent.wrap_reducer(*args, **kwargs)

    def reset_reducers(self) -> None:
        """Make every reducer forget its values."""
        self._parent.reset_reducers()

    def reduce_metrics(self, for_training: bool) -> dict[str, Any]:
        """Return the reducers' metrics; see :meth:`PyTorchTrialContext.reduce_metrics`."""
        return self._parent.reduce_metrics(for_training)

    def disable_auto_to_device(self) -> None:
        """Give batches to the trial as the loader made them; it moves them itself."""
        self._auto_to_device = False
