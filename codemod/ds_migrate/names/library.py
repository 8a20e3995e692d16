"""Names of Determined's library outside of the trial API, which have a counterpart without a cluster."""

from __future__ import annotations

from dataclasses import replace

from ds_migrate.names.row import Row, converted, left, provided, refused

_API = "tests/runtime/test_api.py"
_TARGET = "tests/codemod/test_names.py"
_NAMES = "tests/runtime/test_library_names.py"
_HOROVOD = "tests/runtime/test_horovod.py"
_CORE = "tests/runtime/test_core.py"
_CLIENT = "tests/runtime/test_client.py"
_CREATE = "tests/runtime/test_create.py"
_TRANSFORMERS = "tests/runtime/test_transformers_callback.py"
_HUGGINGFACE = "tests/runtime/test_huggingface.py"
_BATCH_PROCESS = "tests/runtime/test_torch_batch_process.py"

_REGISTRY = "there is no model registry here; name the checkpoint's folder, e.g. ds-train --latest-checkpoint PATH"
_USERS = "there are no users, workspaces or projects here; remove the call"
_CLIENT_NAMES = (
    "Checkpoint CheckpointOrderBy CheckpointSortBy CheckpointState Determined DownloadMode Experiment "
    "ExperimentOrderBy ExperimentSortBy ExperimentState OrderBy TrainingMetrics Trial TrialMetrics TrialOrderBy "
    "TrialSortBy TrialState ValidationMetrics"
)
_REGISTRY_NAMES = "Model ModelOrderBy ModelSortBy ModelVersion"
_CHECKS = (
    "CheckFailedError check_eq check_eq_len check_false check_gt check_gt_eq check_in check_isinstance "
    "check_issubclass check_len check_lt check_lt_eq check_none check_not_eq check_not_in check_not_isinstance "
    "check_not_none check_true check_type eq equal_lengths false gt gt_eq is_in is_instance is_none is_not_instance "
    "is_not_none is_subclass is_type len_eq lt lt_eq not_eq not_in true"
)

ROWS: list[Row] = [
    *provided("determined", "Categorical Constant Double Integer Log", _NAMES),
    *provided(
        "determined.util",
        "calculate_batch_sizes download_gcs_blob_with_backoff filter_duplicates force_create_symlink get_member_func "
        "has_param humanize_float is_numerical_scalar is_overridden json_encode merge_dicts",
        _NAMES,
    ),
    *provided("determined.common", "set_logger", _NAMES),
    *provided("determined.common.check", _CHECKS, _NAMES),
    *(
        replace(row, name=row.name.replace("determined.common", "determined_common"))
        for row in [*provided("determined.common", "", _NAMES), *provided("determined.common.check", _CHECKS, _NAMES)]
    ),
    *provided("determined.gpu", "get_gpu_uuids", _API),
    *provided("determined.horovod", "hvd", _HOROVOD),
    *refused(
        "determined.horovod.hvd", "DistributedOptimizer", _HOROVOD,
        "context.wrap_optimizer() or the engine shares the gradients; use the optimizer itself",
    ),
    *provided("determined.tensorboard", "MetricWriter", _API),
    *provided("determined.tensorboard.metric_writers", "", _API),
    *provided("determined.tensorboard.metric_writers.pytorch", "TorchWriter", _API),
    *provided("determined.core", "Context DistributedContext DummyDistributedContext", _API),
    *provided(
        "determined.core",
        "CheckpointContext DownloadMode EarlyExitReason ExperimentalCoreContext PreemptContext PreemptMode "
        "ProfilerContext SearcherContext SearcherMode SearcherOperation TensorboardMode TrainContext Unit init",
        _CORE,
    ),
    *provided("determined.experimental", "create create_trial_instance test_one_batch", _CREATE),
    *provided(
        "determined.experimental",
        "Checkpoint Determined Experiment ExperimentReference OrderBy Trial TrialOrderBy TrialReference TrialSortBy",
        _CLIENT,
    ),
    *refused("determined.experimental", _REGISTRY_NAMES, _CLIENT, _REGISTRY),
    *refused("determined.experimental", "Project", _CLIENT, _USERS),
    *provided("determined.experimental.client", _CLIENT_NAMES, _CLIENT),
    *provided(
        "determined.experimental.client",
        "get_checkpoint get_experiment get_trial iter_trials_metrics list_experiments login logout "
        "stream_trials_metrics stream_trials_training_metrics stream_trials_validation_metrics",
        _CLIENT,
    ),
    *refused(
        "determined.experimental.client", "create_experiment Determined.create_experiment", _CLIENT,
        "start it on the command line: ds-train CONFIG.yaml DIR",
    ),
    *refused(
        "determined.experimental.client",
        f"{_REGISTRY_NAMES} create_model get_model get_model_by_id get_model_labels get_models list_models "
        "Determined.create_model Determined.get_model Determined.get_model_by_id Determined.get_model_labels "
        "Determined.get_models Determined.list_models",
        _CLIENT, _REGISTRY,
    ),
    *refused(
        "determined.experimental.client",
        "Oauth2ScimClient Project ResourcePool User Workspace add_oauth_client create_user create_workspace "
        "delete_workspace get_session_username get_user_by_id get_user_by_name get_workspace list_oauth_clients "
        "list_users list_workspaces remove_oauth_client whoami",
        _CLIENT, _USERS,
    ),
    *refused(
        "determined.experimental.client",
        " ".join(
            f"Determined.{name}"
            for name in [
                *("add_oauth_client", "create_user", "create_workspace", "delete_workspace", "get_session_username"),
                *("get_user_by_id", "get_user_by_name", "get_workspace", "list_oauth_clients", "list_users"),
                *("list_workspaces", "remove_oauth_client", "whoami"),
            ]
        ),
        _CLIENT, _USERS,
    ),
    *refused(
        "determined.experimental.client",
        "Experiment.activate Experiment.cancel Experiment.kill Experiment.pause Trial.kill",
        _CLIENT, "stop a run with Ctrl-C or SIGTERM, and resume it with ds-train --run-dir",
    ),
    *refused(
        "determined.experimental.client",
        "Checkpoint.get_pachyderm_commit Checkpoint.remove_files Experiment.add_label Experiment.archive "
        "Experiment.delete Experiment.delete_tensorboard_files Experiment.download_code "
        "Experiment.get_pachyderm_config Experiment.move_to_project Experiment.remove_label "
        "Experiment.set_description Experiment.set_labels Experiment.set_name Experiment.set_notes "
        "Experiment.unarchive",
        _CLIENT, "there is no master that keeps it; change or read the files of the run directory",
    ),
    *provided(
        "determined.common.experimental",
        "Checkpoint Determined Experiment ExperimentReference OrderBy TrainingMetrics Trial TrialMetrics TrialOrderBy "
        "TrialReference TrialSortBy ValidationMetrics",
        _CLIENT,
    ),
    *refused("determined.common.experimental", f"{_REGISTRY_NAMES} model", _CLIENT, _REGISTRY),
    *refused("determined.common.experimental", "Project", _CLIENT, _USERS),
    *provided(
        "determined.common.experimental.checkpoint",
        "Checkpoint CheckpointOrderBy CheckpointSortBy CheckpointState DownloadMode",
        _CLIENT,
    ),
    *provided("determined.common.experimental.determined", "Determined OrderBy", _CLIENT),
    *provided(
        "determined.common.experimental.experiment",
        "Experiment ExperimentOrderBy ExperimentReference ExperimentSortBy ExperimentState OrderBy TERMINAL_STATES",
        _CLIENT,
    ),
    *provided("determined.common.experimental.metrics", "TrainingMetrics TrialMetrics ValidationMetrics", _CLIENT),
    *provided(
        "determined.common.experimental.trial",
        "OrderBy Trial TrialOrderBy TrialReference TrialSortBy TrialState",
        _CLIENT,
    ),
    *provided(
        "determined.pytorch.experimental",
        "TorchBatchProcessor TorchBatchProcessorContext get_default_device torch_batch_process",
        _BATCH_PROCESS,
    ),
    *provided("determined.transformers", "DetCallback get_ds_config_path_from_args get_metric_type", _TRANSFORMERS),
    *provided(
        "model_hub.huggingface",
        "ConfigKwargs DatasetKwargs LRSchedulerKwargs ModelKwargs OptimizerKwargs TokenizerKwargs "
        "build_default_lr_scheduler build_default_optimizer build_using_auto default_load_dataset "
        "default_parse_config_tokenizer_model_kwargs default_parse_optimizer_lr_scheduler_kwargs "
        "parse_dict_to_dataclasses remove_unused_columns",
        _HUGGINGFACE,
    ),
    converted(
        "model_hub.huggingface.BaseTransformerTrial",
        "trial_runtime.model_hub.huggingface.BaseTransformerDeepSpeedTrial",
        _HUGGINGFACE,
        "BaseTransformerDeepSpeedTrial takes its place",
    ),
    *provided(
        "model_hub.utils", "AttrDict compute_num_training_steps download_url expand_like numpify", _HUGGINGFACE
    ),
    *left("model_hub.mmdetection", "", _TARGET, "mmdetection is no longer maintained; train the model in a trial"),
]  # fmt: skip
