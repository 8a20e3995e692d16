"""Places of this machine: how many trials of a search it trains at once, and on which GPUs."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from trial_runtime.train.config.errors import ConfigError


@dataclass(frozen=True)
class Places:
    """The places.

    Attributes:
        count: trials at once.
        slots: of each trial.
        devices: for each place its GPUs, as ``CUDA_VISIBLE_DEVICES`` takes them; empty on a CPU.
        environment: variables for the trials.
    """

    count: int
    slots: int
    devices: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        kind = "GPU" if self.devices else "CPU"
        return f"{self.count} at once on this machine, {self.slots} {kind} slot{'s' * (self.slots != 1)} each"


def places_of_machine(slots: int | None, slots_per_trial: int) -> Places:
    """Return the places of this machine.

    Args:
        slots: how many slots the trials share; None: all GPUs, or as many as there are CPU cores.
        slots_per_trial: of the config.

    Raises:
        ConfigError: a trial needs more slots than there are.
    """
    gpus = visible_gpus()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if slots is None:
        slots = len(gpus) or max(cores, slots_per_trial)
    if gpus and slots > len(gpus):
        raise ConfigError(
            f"--slots {slots}: this machine shows {len(gpus)} GPUs (CUDA_VISIBLE_DEVICES='' trains on CPUs)"
        )
    if slots < slots_per_trial:
        raise ConfigError(
            f"resources.slots_per_trial: a trial takes {slots_per_trial} slots, and there are {slots}: lower it with "
            f"--config resources.slots_per_trial={slots}"
        )
    count = slots // slots_per_trial
    if gpus:
        shares = [gpus[place * slots_per_trial : (place + 1) * slots_per_trial] for place in range(count)]
        return Places(count, slots_per_trial, [",".join(share) for share in shares])
    threads = os.environ.get("OMP_NUM_THREADS") or str(max(1, cores // slots))
    return Places(count, slots_per_trial, environment={"OMP_NUM_THREADS": threads})


def visible_gpus() -> list[str]:
    """Return the names of the visible GPUs, as ``CUDA_VISIBLE_DEVICES`` has them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip() not in ("", "-1")]
    if not Path("/proc/driver/nvidia/gpus").is_dir():
        return []
    import torch

    return [str(index) for index in range(torch.cuda.device_count())]
