"""Writing to TensorBoard, by the names that trials import."""

from trial_runtime.tensorboard.base import MetricWriter

__all__ = ["MetricWriter"]
