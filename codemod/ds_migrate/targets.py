"""The packages that converted code imports from, and their names: the bundled runtime or the official package."""

from __future__ import annotations

from dataclasses import dataclass

DEEPSPEED_MODULE = "determined.pytorch.deepspeed"

# PyTorchTrial's own names -> their DeepSpeedTrial counterparts, below ``pytorch.deepspeed``.
MOVED = {
    "determined.pytorch.PyTorchTrial": "DeepSpeedTrial",
    "determined.pytorch.PyTorchTrialContext": "DeepSpeedTrialContext",
    "determined.pytorch.init": "init",
    "determined.pytorch.Trainer": "Trainer",
}

_PYTORCH = frozenset(
    [
        "DataLoader",
        "TorchData",
        "adapt_batch_sampler",
        "data_length",
        "to_device",
        "PyTorchCallback",
        "LRScheduler",
        "MetricReducer",
        "Reducer",
        "Batch",
        "Epoch",
        "TrainUnit",
        "PyTorchTrial",
        "PyTorchTrialContext",
        "CheckpointLoadContext",
        "load_trial_from_checkpoint_path",
        "init",
        "Trainer",
        "samplers",
        "deepspeed",
    ]
)
_DEEPSPEED = frozenset(
    [
        "init",
        "Trainer",
        "DeepSpeedTrial",
        "DeepSpeedTrialContext",
        "overwrite_deepspeed_config",
        "ModelParallelUnit",
        "make_data_parallel_mpu",
        "make_deepspeed_mpu",
    ]
)
_SAMPLERS = frozenset(
    [
        "RepeatSampler",
        "RepeatBatchSampler",
        "DistributedSampler",
        "DistributedBatchSampler",
        "SkipSampler",
        "SkipBatchSampler",
        "ReproducibleShuffleSampler",
        "ReproducibleShuffleBatchSampler",
    ]
)
SHARED = {
    "determined": frozenset(
        {"get_cluster_info", "import_from_path", "LOG_FORMAT", "ClusterInfo", "TrialInfo", "InvalidHP", "TrialContext"}
        | {"pytorch", "core", "tensorboard", "errors"}
    ),
    "determined.errors": frozenset(
        {"InternalException", "InvalidCheckpointException", "InvalidConfigurationException"}
        | {"InvalidDataTypeException", "InvalidExperimentException"}
    ),
    "determined.pytorch": _PYTORCH,
    "determined.pytorch.deepspeed": _DEEPSPEED,
    "determined.pytorch.samplers": _SAMPLERS,
    "determined.core": frozenset({"DistributedContext", "DummyDistributedContext"}),
    "determined.tensorboard": frozenset({"metric_writers"}),
    "determined.tensorboard.metric_writers": frozenset({"pytorch"}),
    "determined.tensorboard.metric_writers.pytorch": frozenset({"TorchWriter"}),
}


@dataclass(frozen=True)
class Target:
    """``package`` replaces the prefix ``determined``; ``ships_helpers``: whether the runtime's own extras exist."""

    package: str
    ships_helpers: bool

    def module(self, name: str) -> str:
        """``determined.pytorch`` in this target's spelling."""
        head, dot, rest = name.partition(".")
        return f"{self.package}{dot}{rest}" if head == "determined" else name

    def has(self, qualified: str) -> bool:
        """Return whether a ``determined`` name exists in the target."""
        if not self.ships_helpers:
            return True
        if qualified in SHARED:
            return True
        module, _, name = qualified.rpartition(".")
        while module:
            if module in SHARED:
                return name.split(".")[0] in SHARED[module]
            module, _, inner = module.rpartition(".")
            name = f"{inner}.{name}"
        return False


RUNTIME = Target("trial_runtime", ships_helpers=True)
DETERMINED = Target("determined", ships_helpers=False)


def target_named(name: str) -> Target:
    return DETERMINED if name == "determined" else RUNTIME
