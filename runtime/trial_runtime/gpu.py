"""The GPUs of this machine."""

from __future__ import annotations


def get_gpu_uuids() -> list[str]:
    """Return the UUIDs of the NVIDIA and AMD GPUs that torch sees here, in its order; empty on a CPU machine."""
    import torch

    return [str(torch.cuda.get_device_properties(index).uuid) for index in range(torch.cuda.device_count())]
