"""The original on the real ``determined`` package (``--oracle determined``), without a cluster."""

from __future__ import annotations

import importlib
import os
import runpy
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist
from trial_runtime._cluster_info import ClusterInfo, get_cluster_info


def prepare() -> None:
    """Let user code that asks ``determined`` for its run get this one; the package itself stays off-cluster."""
    determined: Any = importlib.import_module("determined")

    def cluster_info() -> Any:
        asking = sys._getframe(1).f_globals.get("__name__", "")
        return None if asking.partition(".")[0] == "determined" else get_cluster_info()

    determined.get_cluster_info = cluster_info
    os.environ.setdefault("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")  # it restores pickled objects


def run_entrypoint(info: ClusterInfo, kind: str, target: str, args: Sequence[str]) -> None:
    """What a cluster ran for this entrypoint, on the ranks that are there."""
    if kind != "class":
        sys.argv = [target, *args]
        if kind == "module":
            runpy.run_module(target, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(Path(target).resolve().parent))
            runpy.run_path(target, run_name="__main__")
        return
    pytorch = importlib.import_module("determined.pytorch")
    module, _, name = target.partition(":")
    trial_class = getattr(importlib.import_module(module), name)
    with pytorch.init(
        hparams=info.trial.hparams,
        exp_conf=info.trial._config,
        distributed=distributed_context(),
        aggregation_frequency=info.run.aggregation_frequency,
        enable_tensorboard_logging=False,
    ) as context:
        pytorch.Trainer(trial_class(context), context).fit()


def distributed_context() -> Any:
    """Determined's own channel between the ranks, on ports that are free now, so that two sessions never meet."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return None
    core = importlib.import_module("determined.core")
    rank, size = dist.get_rank(), dist.get_world_size()
    ports: list[int] = [0, 0]
    if rank == 0:
        with socket.socket() as one, socket.socket() as other:
            one.bind(("", 0))
            other.bind(("", 0))
            ports = [one.getsockname()[1], other.getsockname()[1]]
    dist.broadcast_object_list(ports)
    return core.DistributedContext(
        rank=rank, size=size, local_rank=rank, local_size=size, cross_rank=0, cross_size=1,
        pub_port=ports[0], pull_port=ports[1],
    )  # fmt: skip
