"""Make engines of ZeRO stage 0 in full precision, to load a checkpoint of any kind into one plain process."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any
from unittest import mock

import deepspeed
from deepspeed.pipe import PipelineModule
from deepspeed.utils import groups

from trial_runtime.pytorch.deepspeed._config import overwrite_deepspeed_config
from trial_runtime.pytorch.deepspeed._patches.patch import Patch


@contextlib.contextmanager
def apply() -> Iterator[None]:
    """Make engines of ZeRO stage 0, in full precision, for one rank; pipelines have one stage."""
    initialize, make_pipeline, mpu = deepspeed.initialize, PipelineModule.__init__, groups.mpu

    @functools.wraps(initialize)
    def plain(*args: Any, **kwargs: Any) -> Any:
        config = kwargs.pop("config", None) or kwargs.pop("config_params", None)
        if config is None:
            config = getattr(kwargs.get("args"), "deepspeed_config", None)
        kwargs.pop("args", None)
        if config is None:
            return initialize(*args, **kwargs)
        config = overwrite_deepspeed_config(config, {"train_micro_batch_size_per_gpu": 1})
        config = {key: value for key, value in config.items() if key not in ("train_batch_size", "fp16", "bf16")}
        config.update({"gradient_accumulation_steps": 1, "zero_optimization": {"stage": 0}})
        return initialize(*args, config=config, **kwargs)

    @functools.wraps(make_pipeline)
    def whole(self: Any, layers: Any, num_stages: Any = None, topology: Any = None, *args: Any, **kwargs: Any) -> None:
        del num_stages, topology
        make_pipeline(self, layers, 1, None, *args, **kwargs)

    with mock.patch.object(deepspeed, "initialize", plain), mock.patch.object(PipelineModule, "__init__", whole):
        try:
            yield
        finally:
            groups.mpu = mpu  # a pipeline leaves its layout there, for all later engines


PATCH = Patch(
    "plain_engines",
    "DeepSpeed makes engines for the ranks and ZeRO stage of training only, not for one process with whole weights.",
    in_load=apply,
)
