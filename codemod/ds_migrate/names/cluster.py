"""Names of Determined's library that need a cluster, another framework, or are inner parts: left with a review."""

from __future__ import annotations

from ds_migrate.names.row import Row, left

_TARGET = "tests/codemod/test_names.py"
_INNER = "it is an inner part of Determined's harness; nothing stands for it here"
_MASTER = "it talks to a Determined master; remove it, or keep determined installed for it"
_TENSORFLOW = "TensorFlow and Keras are out of scope; keep determined installed for it"
_UPLOAD = "TensorBoard files lie in the run directory; no upload is needed"
_LAUNCH = "ds-train starts the ranks: an entrypoint that names a launch layer works as it is"
_LOCAL_CONTEXTS = "core.init() returns contexts that work without a cluster; use core.Context"

ROWS: list[Row] = [
    *left("determined", "EnvContext ExperimentConfig LegacyTrial RendezvousInfo ResourcesInfo", _TARGET, _INNER),
    *left("determined", "TrialController constants exec ipc layers load workload", _TARGET, _INNER),
    *left("determined", "cli deploy", _TARGET, _MASTER),
    *left("determined", "estimator keras tensorpack", _TARGET, _TENSORFLOW),
    *left("determined", "experimental.estimator experimental.keras", _TARGET, _TENSORFLOW),
    *left("determined", "tensorboard.metric_writers.tensorflow", _TARGET, _TENSORFLOW),
    *left("determined.launch", "", _TARGET, _LAUNCH),
    *left(
        "determined.lightning", "", _TARGET,
        "train the LightningModule with lightning.Trainer(strategy='deepspeed_stage_2')",
    ),
    *left(
        "determined.errors",
        "CheckpointStateException EnterpriseOnlyError MultipleDownloadsFailed NoDirectStorageAccess "
        "ProxiedDownloadFailed SkipWorkloadException StopLoadingImplementation WorkerError WorkerFinishedGracefully",
        _TARGET, "nothing raises it here; remove the use",
    ),
    *left(
        "determined.core",
        "DummyCheckpointContext DummyExperimentalCoreContext DummyPreemptContext DummyProfilerContext "
        "DummySearcherContext DummySearcherOperation DummyTrainContext SearcherContextMissing",
        _TARGET, _LOCAL_CONTEXTS,
    ),
    *left("determined.experimental", "core_v2 checkpoint metrics model", _TARGET, _MASTER),
    *left("determined.gpu", "GPU GPUProcess float_or_default get_gpu_processes get_gpus gpu_fields warned_fields",
          _TARGET, "use torch.cuda"),
    *left("determined.horovod", "create_hostlist_arg create_performance_args create_run_command", _TARGET, _LAUNCH),
    *left(
        "determined.tensorboard",
        "AzureTensorboardManager BatchMetricWriter S3TensorboardManager SharedFSTensorboardManager TensorboardManager "
        "azure base build directory fetchers gcs get_base_path get_experiment_sync_path get_metric_writer "
        "get_sync_path metric_writers.BatchMetricWriter metric_writers.MetricWriter metric_writers.callback "
        "s3 shared util",
        _TARGET, _UPLOAD,
    ),
    *left(
        "determined.util",
        "check_sshd forward_signals legacy_trial_entrypoint_to_script make_metrics make_timing_log "
        "mask_checkpoint_storage mask_config_dict match_legacy_trial_class rmtree_nfs_safe signal_process_tree "
        "validate_batch_metrics write_user_code _list_to_dict",
        _TARGET, _INNER,
    ),
    *left("determined.common", "api context detlomond storage streams v1file_utils", _TARGET, _MASTER),
    *left("determined.common", "constants detignore util", _TARGET, _INNER),
    *left(
        "determined.common.experimental",
        "oauth2_scim_client project resource_pool trial.LogLevel user workspace",
        _TARGET, _MASTER,
    ),
    *left("determined", "HorovodContext _make_local_execution_env create _execution", _TARGET, _INNER),
]  # fmt: skip
