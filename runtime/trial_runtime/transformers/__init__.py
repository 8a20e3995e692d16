"""Callback that reports the training of a ``transformers.Trainer`` to the run that it belongs to."""

from trial_runtime.transformers._callback import DetCallback, get_ds_config_path_from_args, get_metric_type

__all__ = ["DetCallback", "get_ds_config_path_from_args", "get_metric_type"]
