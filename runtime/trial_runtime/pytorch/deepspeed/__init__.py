# ruff: noqa: E402 - the first statement must run before DeepSpeed is imported
"""DeepSpeedTrial: training by DeepSpeed engines.

Importing this package sets DeepSpeed up to run on any machine: quiet, without MPI, and without compiling a
communication library on CPU.
"""

from trial_runtime import _log_filters

_log_filters.expect_cpu()

from trial_runtime.pytorch._amp import autocast_forward
from trial_runtime.pytorch.deepspeed._attr_dict import AttrDict
from trial_runtime.pytorch.deepspeed._checkpoints.export import consolidated_state_dict, export
from trial_runtime.pytorch.deepspeed._config import overwrite_deepspeed_config
from trial_runtime.pytorch.deepspeed._context import DeepSpeedTrialContext, full_state_dict
from trial_runtime.pytorch.deepspeed._controller import DeepSpeedTrialController
from trial_runtime.pytorch.deepspeed._engine.collection import Engines
from trial_runtime.pytorch.deepspeed._engine.float32_boundary import float32_outside
from trial_runtime.pytorch.deepspeed._engine.module import EngineModule
from trial_runtime.pytorch.deepspeed._mpu import ModelParallelUnit, make_data_parallel_mpu, make_deepspeed_mpu
from trial_runtime.pytorch.deepspeed._patches import apply_to_process
from trial_runtime.pytorch.deepspeed._trainer import Trainer, init
from trial_runtime.pytorch.deepspeed._trial import DeepSpeedTrial

apply_to_process()
_log_filters.log_to_stderr()

__all__ = [
    "AttrDict",
    "DeepSpeedTrial",
    "DeepSpeedTrialContext",
    "DeepSpeedTrialController",
    "EngineModule",
    "Engines",
    "ModelParallelUnit",
    "Trainer",
    "autocast_forward",
    "consolidated_state_dict",
    "export",
    "float32_outside",
    "full_state_dict",
    "init",
    "make_data_parallel_mpu",
    "make_deepspeed_mpu",
    "overwrite_deepspeed_config",
]
