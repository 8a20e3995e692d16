"""PyTorchTrial under the loop."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.nn.parallel import DistributedDataParallel

from trial_runtime.errors import InvalidCheckpointException, InvalidExperimentException
from trial_runtime.pytorch import _ddp_buffers
from trial_runtime.pytorch._checkpoints import restricted_load
from trial_runtime.pytorch._checkpoints.determined_format import state_file, without_ddp
from trial_runtime.pytorch._data.training_data import TrainingData
from trial_runtime.pytorch._loop.strategy import Shard, Strategy, accepts_parameter, overrides
from trial_runtime.pytorch._pytorch_context import PyTorchTrialContext
from trial_runtime.pytorch._reporting.aggregation import as_dict
from trial_runtime.pytorch._trial import PyTorchTrial

STATE_FILE = "state_dict.pth"

logger = logging.getLogger("trial_runtime.pytorch")

_T = TypeVar("_T")


class PyTorchStrategy(Strategy):
    """Strategy of a PyTorchTrial: one call of ``train_batch`` a batch; the chief holds the checkpointed state."""

    disable_checks_call = "context.experimental.disable_dataset_reproducibility_checks()"
    checkpoint_hooks_on_all_ranks = False
    context: PyTorchTrialContext

    def prepare(self) -> None:
        if not self.context.models:
            raise InvalidExperimentException(
                "Must have at least one model; the trial has no model. Wrap one in its __init__: context.wrap_model()."
            )
        if not self.context.optimizers:
            raise InvalidExperimentException(
                "Must have at least one optimizer; the trial has no optimizer. Wrap one in its __init__: "
                "context.wrap_optimizer()."
            )
        if self.evaluates_batches == overrides(self.trial.evaluate_full_dataset, PyTorchTrial):
            raise InvalidExperimentException(
                f"{type(self.trial).__name__} must define exactly one of evaluate_batch() and evaluate_full_dataset(). "
                "The former is shared among the ranks."
            )
        info = self.context._settings.info
        if info is not None and info.run.precision is not None:
            raise InvalidExperimentException(
                f"--precision {info.run.precision}: is for a DeepSpeedTrial, whose engine has a precision; a "
                "PyTorchTrial uses torch.autocast in its own code."
            )
        if info is not None and info.run.fit.log_grad_norm and self.context.distributed.rank == 0:
            logger.warning("log_grad_norm is for a DeepSpeedTrial; a PyTorchTrial's gradient norms are not reported.")
        self._passes_batch_idx = self.evaluates_batches and accepts_parameter(self.trial.evaluate_batch, "batch_idx", 1)

    @property
    def shard(self) -> Shard:
        return Shard(self.context.distributed.rank, self.context.distributed.size)

    @property
    def evaluates_batches(self) -> bool:
        return overrides(self.trial.evaluate_batch, PyTorchTrial)

    def train_batch(self, data: TrainingData | None) -> list[dict[str, Any]]:
        context, progress = self.context, self.context._progress
        assert data is not None
        batch = self._to_device(next(data))
        context._micro_idx = progress.batches
        metrics = self.trial.train_batch(
            batch=batch, epoch_idx=progress.epoch_of(progress.batches), batch_idx=progress.batches
        )
        if context._scaler is not None and context.experimental._auto_amp and context._should_step():
            context._scaler.update()  # once for all optimizers
        for scheduler in context.lr_schedulers:
            for _ in range(scheduler.steps_due(progress.batches, context._aggregation_frequency, progress)):
                scheduler.step()
        return [as_dict(metrics, "train_batch()")]

    def evaluate_batch(self, data: Any, batch_idx: int) -> Any:
        batch = self._to_device(next(data))
        if self._passes_batch_idx:
            return self.trial.evaluate_batch(batch=batch, batch_idx=batch_idx)
        return self.trial.evaluate_batch(batch=batch)

    def share_buffers(self) -> None:
        for model in self.context.models:
            if isinstance(model, DistributedDataParallel) and model.require_forward_param_sync:
                _ddp_buffers.broadcast(list(model.module.buffers()))
                model.require_forward_param_sync = False

    def _to_device(self, batch: Any) -> Any:
        return self.context.to_device(batch) if self.context.experimental._auto_to_device else batch

    def checkpoint_state(self) -> dict[str, Any]:
        context = self.context
        state: dict[str, Any] = {
            "models_state_dict": [_bare(model).state_dict() for model in context.models],
            "optimizers_state_dict": [optimizer.state_dict() for optimizer in context.optimizers],
            "lr_schedulers_state_dict": [scheduler.state_dict() for scheduler in context.lr_schedulers],
            "free_parameters": [p.detach().cpu() for p in self._free_parameters()],
        }
        if context._scaler is not None:
            state["scaler_state_dict"] = context._scaler.state_dict()
        return state

    def save(self, path: Path, checkpoint: dict[str, Any]) -> None:
        if self.context.distributed.rank == 0:
            torch.save(checkpoint, path / STATE_FILE)

    def read(self, path: Path) -> dict[str, Any]:
        file = state_file(path)
        if file is None:
            raise InvalidCheckpointException(
                f"Checkpoint {path} is not one of a PyTorchTrial: it has no {STATE_FILE}. A DeepSpeedTrial's "
                "checkpoint can be loaded by a DeepSpeedTrial, or its weights be taken out by deepspeed.export()."
            )
        state = restricted_load.read(file)
        if not isinstance(state, dict):
            raise InvalidCheckpointException(f"{file} holds a {type(state).__name__}, no state of a trial.")
        return state

    def load(self, path: Path, checkpoint: dict[str, Any]) -> None:
        del path
        context = self.context
        load_models([_bare(model) for model in context.models], checkpoint["models_state_dict"])
        for optimizer, state in paired("optimizers", context.optimizers, checkpoint["optimizers_state_dict"]):
            optimizer.load_state_dict(state)
        schedules = checkpoint.get("lr_schedulers_state_dict", [])
        for scheduler, state in paired("learning rate schedulers", context.lr_schedulers, schedules):
            scheduler.load_state_dict(state)
        for parameter, value in zip(self._free_parameters(), checkpoint.get("free_parameters", ()), strict=False):
            parameter.data.copy_(value)
        if context._scaler is not None and "scaler_state_dict" in checkpoint:
            context._scaler.load_state_dict(checkpoint["scaler_state_dict"])

    def _free_parameters(self) -> list[torch.Tensor]:
        """Return the parameters that optimizers step and that no wrapped model has."""
        in_models = {id(p) for model in self.context.models for p in model.parameters()}
        groups = [group for optimizer in self.context.optimizers for group in optimizer.param_groups]
        return [p for group in groups for p in group["params"] if id(p) not in in_models]

    def rank_state(self) -> dict[str, Any]:
        """Return gradients that were not stepped yet: of an unfinished aggregation, or left for a later step."""
        free = [None if p.grad is None else p.grad.detach().cpu() for p in self._free_parameters()]
        return {"gradients": [gradients(_bare(model)) for model in self.context.models], "free_gradients": free}

    def load_rank_state(self, state: dict[str, Any]) -> None:
        for model, saved in zip(self.context.models, state.get("gradients", ()), strict=False):
            restore_gradients(_bare(model), saved)
        for parameter, gradient in zip(self._free_parameters(), state.get("free_gradients", ()), strict=False):
            parameter.grad = None if gradient is None else gradient.to(parameter.device)


def load_models(models: Sequence[torch.nn.Module], states: Sequence[dict[str, Any]]) -> None:
    """Give models their saved states.

    Raises:
        InvalidCheckpointException: when there are fewer states.
    """
    for model, state in paired("models", models, states):
        model.load_state_dict(without_ddp(state, model.state_dict()))


def paired(what: str, own: Sequence[_T], states: Sequence[dict[str, Any]]) -> Iterable[tuple[_T, dict[str, Any]]]:
    """Pair the trial's models (optimizers...) with their saved states. Further states are not used.

    Raises:
        InvalidCheckpointException: when there are fewer states.
    """
    counts = f"The checkpoint has the state of {len(states)} {what}, the trial has {len(own)}"
    if len(states) < len(own):
        raise InvalidCheckpointException(f"{counts}.")
    if len(states) > len(own):
        logger.warning(f"{counts}: the first {len(own)} are used.")
    return zip(own, states, strict=False)


def gradients(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the gradients of ``module``'s parameters, by name."""
    return {name: p.grad.detach().cpu() for name, p in module.named_parameters() if p.grad is not None}


def restore_gradients(module: torch.nn.Module, saved: dict[str, torch.Tensor]) -> None:
    """Give ``module``'s parameters the gradients that :func:`gradients` found."""
    for name, parameter in module.named_parameters():
        if name in saved:
            parameter.grad = saved[name].to(parameter.device, parameter.dtype, copy=True)


def _bare(model: torch.nn.Module) -> torch.nn.Module:
    return model.module if isinstance(model, DistributedDataParallel) else model
