"""Checks of this machine and this process: versions, accelerator, launcher, compiler, patches of DeepSpeed."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
from collections.abc import Mapping
from typing import Any

from trial_runtime._installation import install_command
from trial_runtime.doctor.render import Row, Section

_DISTRIBUTIONS = ("ds-migrate", "torch", "deepspeed", "numpy", "safetensors", "tensorboard", "triton")
_NEEDED = ("ds-migrate", "torch", "deepspeed", "numpy", "safetensors", "tensorboard")

# Each launcher, and a variable that only it sets.
_LAUNCHERS = {
    "torchrun": "TORCHELASTIC_RUN_ID",
    "deepspeed": "CROSS_RANK",
    "srun": "SLURM_STEP_ID",
    "mpirun": "OMPI_COMM_WORLD_RANK",
    "horovodrun": "HOROVOD_RANK",
}
_RANK_VARIABLES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "SLURM_PROCID",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_STEP_NODELIST",
)
_SETTINGS = ("CUDA_VISIBLE_DEVICES", "DS_ACCELERATOR", "OMP_NUM_THREADS", "NCCL_SOCKET_IFNAME", "TORCH_EXTENSIONS_DIR")


def versions() -> Section:
    """Return Python and the distributions that training uses."""
    rows = [Row("python", platform.python_version())]
    for name in _DISTRIBUTIONS:
        try:
            rows.append(Row(name, importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            if name in _NEEDED:
                rows.append(Row(name, f"missing: {install_command()}", "bad"))
    return Section("Versions", rows)


def accelerator() -> Section:
    """Return what DeepSpeed would train on."""
    import torch
    from deepspeed.accelerator import get_accelerator

    device = get_accelerator()
    rows = [Row("device", f"{device.device_name()}, collectives through {_backend(device)}")]
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(index)
            rows.append(Row(f"cuda:{index}", f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB"))
        rows.append(Row("CUDA", str(torch.version.cuda)))
    else:
        rows.append(Row("GPUs", "none: training runs on the CPU, one process a rank"))
    formats = [
        name for name, there in (("bf16", device.is_bf16_supported()), ("fp16", device.is_fp16_supported())) if there
    ]
    rows.append(Row("half precision", ", ".join(formats) or "none"))
    rows.append(Row("CPU", f"{len(os.sched_getaffinity(0))} cores, {_host_memory() / 2**30:.0f} GiB"))
    return Section("Accelerator", rows)


def _backend(device: Any) -> str:
    return "nccl" if device.device_name().startswith("cuda") else "gloo"


def memory_of_a_rank() -> tuple[int, str]:
    """Return the bytes that one rank has at most on this machine, and whose they are: the smallest GPU's, or all of the
    host's."""
    import torch

    if torch.cuda.is_available():
        count = torch.cuda.device_count()
        return min(torch.cuda.get_device_properties(index).total_memory for index in range(count)), "a GPU here"
    return _host_memory(), "this machine"


def _host_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def launcher(environment: Mapping[str, str]) -> Section:
    """Return the launcher of this process, by the variables that launchers set.

    Args:
        environment: that of the process.
    """
    seen = [name for name, variable in _LAUNCHERS.items() if variable in environment]
    ranks, rank = environment.get("WORLD_SIZE"), environment.get("RANK")
    if ranks is not None and rank is not None:
        rows = [Row("started by", f"{seen[0] if seen else 'a launcher'}: rank {rank} of {ranks}", "good")]
    elif (ranks is None) != (rank is None):
        lacking = "RANK" if rank is None else "WORLD_SIZE"
        rows = [Row("started by", f"half a launcher: {lacking} is not set, so ranks cannot find each other", "bad")]
    elif seen in (["mpirun"], ["horovodrun"]):
        advice = "start ranks with torchrun, deepspeed or srun: the runtime does not use MPI"
        rows = [Row("started by", f"{seen[0]}, without RANK and WORLD_SIZE: {advice}", "bad")]
    elif seen == ["srun"] and int(environment.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
        rows = [
            Row("started by", f"srun: {environment['SLURM_STEP_NUM_TASKS']} tasks, each a rank of ds-train", "good")
        ]
    else:
        rows = [Row("started by", "no launcher: one rank", "good")]
    rows += [Row(name, environment[name]) for name in (*_RANK_VARIABLES, *_SETTINGS) if name in environment]
    return Section("Launcher", rows)


def compiler() -> Section:
    """Return the compilers. Training needs none of them, unless a config asks for an op that has to be compiled."""
    found = cxx()
    return Section(
        "Compiler",
        [
            Row("C++", found or "none: only needed for ops that a config may ask for"),
            Row("nvcc", nvcc() or "none"),
            Row("MPI", "not needed, not used"),
        ],
    )


def cxx() -> str:
    """Return the C++ compiler that torch would use; empty when there is none."""
    return shutil.which(os.environ.get("CXX", "c++")) or ""


def nvcc() -> str:
    """Return the CUDA compiler; empty when there is none."""
    home = os.environ.get("CUDA_HOME")
    return shutil.which("nvcc", path=f"{home}/bin" if home else None) or ""


def patches() -> Section:
    """Return the patches of DeepSpeed that are in force in a run, with their reasons."""
    from trial_runtime.pytorch.deepspeed._patches import active

    rows = [Row(patch.name, f"{patch.why} (Seen in {patch.versions}, {patch.issue}.)") for patch in active()]
    return Section("Patches of DeepSpeed", rows)
