"""Metric writers of the frameworks: :mod:`trial_runtime.tensorboard.metric_writers.pytorch`."""
