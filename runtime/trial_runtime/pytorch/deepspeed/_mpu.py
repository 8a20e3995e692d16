"""The layout of data and model parallelism: ranks that see the same data, and those that load and report."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch.distributed as dist

from trial_runtime import core


@dataclasses.dataclass
class ModelParallelUnit:
    """A rank's place in the layout.

    Not to be confused with the ``mpu`` of ``deepspeed.initialize``, which is Megatron's interface to process groups.

    Attributes:
        data_parallel_rank: which share of the data this rank trains on.
        data_parallel_world_size: how many shares there are.
        should_report_metrics: whether the metrics of this rank count.
        should_build_data_loader: whether this rank loads data.
    """

    data_parallel_rank: int
    data_parallel_world_size: int
    should_report_metrics: bool
    should_build_data_loader: bool


def make_data_parallel_mpu(dist_context: core.DistributedContext) -> ModelParallelUnit:
    """Return the layout in which every rank is a data-parallel rank."""
    return ModelParallelUnit(dist_context.get_rank(), dist_context.get_size(), True, True)


def make_engine_mpu(engine: Any) -> ModelParallelUnit:
    """Return the layout of an engine that is not a pipeline: ranks that share a model (tensor parallelism, or an
    ``mpu`` of Megatron's given to ``deepspeed.initialize``) train on the same share of the data."""
    size = int(engine.dp_world_size)
    return ModelParallelUnit(dist.get_rank(engine.data_parallel_group), size, True, True)


def make_deepspeed_mpu(topology: Any) -> ModelParallelUnit:
    """Return the layout of a pipeline engine, ``engine.mpu``: its first and last stage load the data."""
    stage, stages = topology.get_pipe_parallel_rank(), topology.get_pipe_parallel_world_size()
    return ModelParallelUnit(
        data_parallel_rank=topology.get_data_parallel_rank(),
        data_parallel_world_size=topology.get_data_parallel_world_size(),
        should_report_metrics=True,
        should_build_data_loader=topology.get_slice_parallel_rank() == 0 and stage in (0, stages - 1),
    )
