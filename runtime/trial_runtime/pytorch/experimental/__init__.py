"""Inference over a data set, in batches, on all ranks."""

from trial_runtime.pytorch.experimental._torch_batch_process import (
    TorchBatchProcessor,
    TorchBatchProcessorContext,
    get_default_device,
    torch_batch_process,
)

__all__ = ["TorchBatchProcessor", "TorchBatchProcessorContext", "get_default_device", "torch_batch_process"]
