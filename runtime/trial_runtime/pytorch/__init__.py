"""PyTorchTrial, and what it shares with DeepSpeedTrial: data, callbacks, reducers, schedules, training lengths."""

from trial_runtime._refusal import refused
from trial_runtime.pytorch import samplers
from trial_runtime.pytorch._callback import PyTorchCallback
from trial_runtime.pytorch._checkpoints.load import CheckpointLoadContext, load_trial_from_checkpoint_path
from trial_runtime.pytorch._context import TrialContext
from trial_runtime.pytorch._controller import _PyTorchTrialController
from trial_runtime.pytorch._data.loader import DataLoader, TorchData, adapt_batch_sampler, data_length, to_device
from trial_runtime.pytorch._experimental_context import PyTorchExperimentalContext
from trial_runtime.pytorch._initialization import reset_parameters
from trial_runtime.pytorch._lr_scheduler import LRScheduler
from trial_runtime.pytorch._old_api import ClipGradsL2Norm, ClipGradsL2Value
from trial_runtime.pytorch._pytorch_context import PyTorchTrialContext
from trial_runtime.pytorch._reducer import MetricReducer, Reducer, _SimpleReducer
from trial_runtime.pytorch._reporting.aggregation import reduce_values
from trial_runtime.pytorch._reporting.sinks import MetricsRecorder, MetricsSink
from trial_runtime.pytorch._train_units import Batch, Epoch, TrainUnit
from trial_runtime.pytorch._trainer import Trainer, init
from trial_runtime.pytorch._trial import PyTorchTrial

_reduce_metrics = _simple_reduce_metrics = reduce_values
AvgMetricReducer = refused("determined.pytorch.AvgMetricReducer")
SumMetricReducer = refused("determined.pytorch.SumMetricReducer")
MaxMetricReducer = refused("determined.pytorch.MaxMetricReducer")
MinMetricReducer = refused("determined.pytorch.MinMetricReducer")

__all__ = [
    "Batch",
    "CheckpointLoadContext",
    "ClipGradsL2Norm",
    "ClipGradsL2Value",
    "DataLoader",
    "Epoch",
    "LRScheduler",
    "MetricReducer",
    "MetricsRecorder",
    "MetricsSink",
    "PyTorchCallback",
    "PyTorchExperimentalContext",
    "PyTorchTrial",
    "PyTorchTrialContext",
    "Reducer",
    "TorchData",
    "TrainUnit",
    "Trainer",
    "TrialContext",
    "_PyTorchTrialController",
    "_SimpleReducer",
    "_reduce_metrics",
    "_simple_reduce_metrics",
    "adapt_batch_sampler",
    "data_length",
    "init",
    "load_trial_from_checkpoint_path",
    "reset_parameters",
    "samplers",
    "to_device",
]
