"""Metrics of Determined's client, by their inner path."""

from trial_runtime.experimental._metrics import TrainingMetrics, TrialMetrics, ValidationMetrics

__all__ = ["TrainingMetrics", "TrialMetrics", "ValidationMetrics"]
