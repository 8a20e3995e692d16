"""Names of the trial API: trials, their contexts, data, callbacks, reducers, lengths; and what they had been before."""

from __future__ import annotations

from ds_migrate.names.row import Row, converted, left, provided, refused

_API = "tests/runtime/test_api.py"
_TARGET = "tests/codemod/test_names.py"
_OLD = "tests/codemod/test_old_api.py"
_NAMES = "tests/runtime/test_library_names.py"

ROWS: list[Row] = [
    *provided(
        "determined",
        "ClusterInfo TrialInfo get_cluster_info InvalidHP LOG_FORMAT TrialContext import_from_path",
        _API,
    ),
    *provided(
        "determined.errors",
        "CheckpointNotFound InternalException InvalidCheckpointException InvalidConfigurationException "
        "InvalidDataTypeException InvalidExperimentException InvalidModelException",
        _API,
    ),
    *provided(
        "determined.pytorch",
        "Batch CheckpointLoadContext DataLoader Epoch LRScheduler MetricReducer PyTorchCallback "
        "PyTorchExperimentalContext Reducer TorchData TrainUnit adapt_batch_sampler data_length "
        "load_trial_from_checkpoint_path to_device",
        _API,
    ),
    *(
        converted(
            f"determined.pytorch.{name}", f"trial_runtime.pytorch.deepspeed.{new}", _TARGET, f"{new} takes its place"
        )
        for name, new in [
            ("PyTorchTrial", "DeepSpeedTrial"),
            ("PyTorchTrialContext", "DeepSpeedTrialContext"),
            ("Trainer", "Trainer"),
            ("init", "init"),
        ]
    ),
    *provided(
        "determined.pytorch.deepspeed",
        "DeepSpeedTrial DeepSpeedTrialContext ModelParallelUnit Trainer init make_data_parallel_mpu make_deepspeed_mpu "
        "overwrite_deepspeed_config",
        _API,
    ),
    *left(
        "determined.pytorch.deepspeed", "DeepSpeedTrialController", _TARGET,
        "call Trainer.fit(), which builds the controller",
    ),
    *provided(
        "determined.pytorch.samplers",
        "DistributedBatchSampler DistributedSampler RepeatBatchSampler RepeatSampler ReproducibleShuffleBatchSampler "
        "ReproducibleShuffleSampler SkipBatchSampler SkipSampler",
        _API,
    ),
    *provided("determined.pytorch", "_SimpleReducer _reduce_metrics _simple_reduce_metrics reset_parameters", _NAMES),
    *refused(
        "determined.pytorch", "AvgMetricReducer SumMetricReducer MaxMetricReducer MinMetricReducer", _NAMES,
        "use Reducer.AVG, SUM, MAX or MIN; no release of Determined had these classes",
    ),
    *(
        converted(f"determined.pytorch.{name}", None, _OLD, f"clip_grads of step_optimizer() calls {function}")
        for name, function in [("ClipGradsL2Norm", "clip_grad_norm_"), ("ClipGradsL2Value", "clip_grad_value_")]
    ),
    *left(
        "determined.pytorch.lightning", "", _TARGET,
        "train the LightningModule with lightning.Trainer(strategy='deepspeed_stage_2'), without the adapter",
    ),
    *left(
        "determined.pytorch.dsat", "", _TARGET, "choose the DeepSpeed config by hand, or with ds-train --check"
    ),
    converted("pedl", None, _OLD, "the API before 0.13 becomes today's"),
]  # fmt: skip
