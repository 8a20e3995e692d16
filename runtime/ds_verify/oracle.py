"""The original on the real ``determined`` package (``--oracle determined``), without a cluster."""

from __future__ import annotations

import importlib
import os
import runpy
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from trial_runtime import model_hub
from trial_runtime._cluster_info import ClusterInfo, get_cluster_info
from trial_runtime.train.determined_alias import is_importable


def prepare(is_deepspeed_trial: bool = False) -> None:
    """Let user code that asks ``determined`` for its run get this one; the package itself stays off-cluster.

    Args:
        is_deepspeed_trial: let its DeepSpeedTrial, which refuses to start without a GPU, run on a CPU as well.
    """
    determined: Any = importlib.import_module("determined")

    def cluster_info() -> Any:
        asking = sys._getframe(1).f_globals.get("__name__", "")
        return None if asking.partition(".")[0] == "determined" else get_cluster_info()

    determined.get_cluster_info = cluster_info
    os.environ.setdefault("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")  # it restores pickled objects
    if is_deepspeed_trial:
        _prepare_deepspeed()
    else:
        _connect_ranks(importlib.import_module("determined.pytorch"))
        if not is_importable("attrdict"):  # of no use since Python 3.10, and met in trials on model_hub
            sys.modules["attrdict"] = importlib.import_module("trial_runtime.pytorch.deepspeed._attr_dict")
        if not is_importable("model_hub"):
            _serve_model_hub(importlib.import_module("determined.pytorch"))


def _serve_model_hub(package: Any) -> None:
    """Let ``import model_hub`` find the runtime's modules, their base class built on the package's PyTorchTrial.

    The package ``model_hub`` itself was removed in 2024 and does not run with current versions of transformers.
    """
    huggingface = importlib.import_module("trial_runtime.model_hub.huggingface")
    form = importlib.import_module("trial_runtime.model_hub.huggingface._pytorch_trial").PyTorchForm
    served: Any = ModuleType("model_hub.huggingface")
    vars(served).update(vars(huggingface), __name__="model_hub.huggingface")
    step_mode = package.LRScheduler.StepMode.STEP_EVERY_BATCH
    served.BaseTransformerTrial = type(
        "BaseTransformerTrial", (form, package.PyTorchTrial), {"step_every_batch": step_mode}
    )
    top: Any = ModuleType("model_hub")
    vars(top).update(vars(model_hub), __name__="model_hub", huggingface=served)
    utils = importlib.import_module("trial_runtime.model_hub.utils")
    sys.modules.update({"model_hub": top, "model_hub.huggingface": served, "model_hub.utils": utils})


def _connect_ranks(package: Any) -> None:
    """Give ``init()`` the ranks that are there, as a cluster does, where a script passes none."""
    init = package.init

    def init_with_ranks(*, distributed: Any = None, **settings: Any) -> Any:
        return init(distributed=distributed or distributed_context(), **settings)

    package.init = init_with_ranks


def _prepare_deepspeed() -> None:
    comm: Any = importlib.import_module("deepspeed.comm.torch")
    comm.build_shm_op = lambda: None  # or init_distributed compiles it
    compiler: Any = importlib.import_module("deepspeed.runtime.compiler")
    compiler.compile = lambda: lambda function: function  # Muon's, or importing it sets up torch.compile: 1.5 s
    package = importlib.import_module("determined.pytorch.deepspeed")

    def init_device(context: Any) -> None:
        context.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    package.DeepSpeedTrialContext._init_device = init_device


def run_entrypoint(info: ClusterInfo, kind: str, target: str, args: Sequence[str]) -> None:
    """Run what a cluster ran for this entrypoint, on the ranks that are there."""
    if kind != "class":
        sys.argv = [target, *args]
        if kind == "module":
            runpy.run_module(target, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(Path(target).resolve().parent))
            runpy.run_path(target, run_name="__main__")
        return
    module, _, name = target.partition(":")
    trial_class = getattr(importlib.import_module(module), name)
    package = importlib.import_module("determined.pytorch")
    settings: dict[str, Any] = {"aggregation_frequency": info.run.aggregation_frequency}
    if not issubclass(trial_class, package.PyTorchTrial):
        package, settings = importlib.import_module("determined.pytorch.deepspeed"), {}
    with package.init(
        hparams=info.trial.hparams, exp_conf=info.trial._config, enable_tensorboard_logging=False, **settings
    ) as context:
        package.Trainer(trial_class(context), context).fit()


def distributed_context() -> Any:
    """Return Determined's own channel between the ranks, on ports that are free now; None for one rank."""
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
