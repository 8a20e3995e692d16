"""Check DeepSpeed configs: of hyperparameters, of calls of ``deepspeed.initialize``, and of engines."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import deepspeed
import torch.distributed as dist

from trial_runtime.pytorch.deepspeed import _config_lint
from trial_runtime.pytorch.deepspeed._config import overwrite_deepspeed_config
from trial_runtime.pytorch.deepspeed._engine.module import EngineModule
from trial_runtime.pytorch.deepspeed._mpu import ModelParallelUnit


def check_arguments(given: Mapping[str, Any]) -> None:
    """Check the config among the arguments of ``deepspeed.initialize``, with all that they reveal about its use."""
    config, source = _config(given)
    if config is None:
        return  # DeepSpeed reports what it cannot read
    if isinstance(given.get("mpu"), ModelParallelUnit):
        raise _config_lint.InvalidDeepSpeedConfigException(
            "deepspeed.initialize(mpu=...) takes an object with Megatron's methods (get_data_parallel_world_size() "
            "and so on), not a ModelParallelUnit. Leave it out there, and call context.set_mpu(mpu) after "
            "context.wrap_model_engine(engine)."
        )
    model: Any = given.get("model")
    pipeline = isinstance(model, deepspeed.PipelineModule)
    setup = _config_lint.Setup(
        ranks=_data_parallel_ranks(model.mpu() if pipeline else given.get("mpu")),
        optimizer=given.get("optimizer"),
        scheduler=given.get("lr_scheduler"),
        data=given.get("training_data"),
        kind="pipeline" if pipeline else "engine module" if isinstance(model, EngineModule) else "model",
    )
    _config_lint.check(config, setup, source)


def check_named(hparams: dict[str, Any] | None, ranks: int) -> None:
    """Check, before a trial is made, the config that its hyperparameters name, as far as it is known by then.

    The trial may add to it and fill in what is ``"auto"``; the engine's config is checked whole when it is made.

    Args:
        hparams: hyperparameters; ``deepspeed_config`` and ``overwrite_deepspeed_args`` are read.
        ranks: of the run.
    """
    named, changes = (hparams or {}).get("deepspeed_config"), (hparams or {}).get("overwrite_deepspeed_args")
    is_file = isinstance(named, str) and Path(named).is_file()
    if is_file or isinstance(named, dict):
        try:
            config = overwrite_deepspeed_config(named, changes if isinstance(changes, dict) else {})  # type: ignore[arg-type]
        except (OSError, ValueError, TypeError) as error:
            raise _config_lint.InvalidDeepSpeedConfigException(str(error)) from error
        _config_lint.check(config, _config_lint.Setup(ranks=ranks, complete=False), str(named) if is_file else "")


def check_engine(engine: Any) -> None:
    """Check an engine that may be made outside of a run, as far as the engine and its config reveal it."""
    config = getattr(engine._config, "_param_dict", None)
    if isinstance(config, dict):
        kind = "pipeline" if isinstance(engine, deepspeed.PipelineEngine) else "model"
        if isinstance(engine.module, EngineModule):
            kind = "engine module"
        _config_lint.check(config, _config_lint.Setup(kind=kind))  # type: ignore[arg-type]


def _config(given: Mapping[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """Return the config and the file that it is from; ``config=`` wins over ``args.deepspeed_config``."""
    config = given.get("config") or given.get("config_params")
    if config is None:
        config = getattr(given.get("args"), "deepspeed_config", None)
    if config is None:
        raise _config_lint.InvalidDeepSpeedConfigException(
            "deepspeed.initialize() was given no config. Write config=..., a dict or the path of a JSON file."
        )
    if isinstance(config, dict):
        return config, ""
    if isinstance(config, str | Path) and len(str(config)) < 4096 and Path(config).is_file():
        from deepspeed.runtime.tensor_parallel.init_utils import load_ds_config

        return load_ds_config(str(config)), str(config)
    return None, ""


def _data_parallel_ranks(mpu: Any) -> int | None:
    """Return the ranks among which DeepSpeed splits a batch, before sequence parallelism is taken off."""
    if mpu is None:
        return dist.get_world_size() if dist.is_initialized() else 1
    if hasattr(mpu, "get_data_parallel_world_size"):
        return int(mpu.get_data_parallel_world_size())
    return None
