"""The fields of an experiment config that ``ds-train`` knows and does not act on, and why.

Determined's schema has many fields about the cluster. None of them may be passed over in silence: each that a config
holds is named once at start, with what happens to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trial_runtime.train.config.errors import did_you_mean

_CLUSTER = "no cluster here; ignored"
_HOROVOD = "a Horovod setting; ignored"

USED = frozenset(
    {
        "name", "entrypoint", "hyperparameters", "data", "searcher", "resources", "records_per_epoch",
        "min_validation_period", "min_checkpoint_period", "scheduling_unit", "perform_initial_validation",
        "checkpoint_policy", "checkpoint_storage", "reproducibility", "max_restarts", "environment", "optimizations",
        "debug", "early_stopping", "log_grad_norm", "log_with",
        "profiling",
    }
)  # fmt: skip

IGNORED: Mapping[str, str] = {
    "description": "kept in the run directory's copy of the config",
    "labels": "kept in the run directory's copy of the config",
    "notes": "kept in the run directory's copy of the config",
    "workspace": _CLUSTER,
    "project": _CLUSTER,
    "bind_mounts": "nothing is mounted: the paths that the trial reads must exist on this machine",
    "tensorboard_storage": "TensorBoard files go to the run directory",
    "batches_per_step": "Determined removed it, lengths and periods have units; ignored",
    "data_layer": "Determined removed it; ignored",
    "internal": _CLUSTER,
    "slurm": _CLUSTER,
    "pbs": _CLUSTER,
    "security": _CLUSTER,
    "hooks": _CLUSTER,
    "log_policies": _CLUSTER,
    "retention_policy": _CLUSTER,
    "preemption_timeout": _CLUSTER,
    "integrations": _CLUSTER,
    "records_per_epoch": "ignored: an epoch is one pass over the training data",
    "searcher.source_trial_id": "trials of a cluster are not reachable",
    "resources.agent_label": _CLUSTER,
    "resources.devices": _CLUSTER,
    "resources.is_single_node": _CLUSTER,
    "resources.max_slots": _CLUSTER,
    "resources.native_parallel": _CLUSTER,
    "resources.prefer_gpu_topology": _CLUSTER,  # of the public fork that continues Determined
    "resources.priority": _CLUSTER,
    "resources.resource_manager": _CLUSTER,
    "resources.resource_pool": _CLUSTER,
    "resources.shm_size": "no container here; ignored",
    "resources.weight": _CLUSTER,
    "environment.add_capabilities": "no container here; ignored",
    "environment.drop_capabilities": "no container here; ignored",
    "environment.force_pull_image": "no container here; ignored",
    "environment.image": "no container here: the Python that runs ds-train is used",
    "environment.pod_spec": _CLUSTER,
    "environment.ports": "no container here; ignored",
    "environment.proxy_ports": "no container here; ignored",
    "environment.registry_auth": "no container here; ignored",
    "checkpoint_storage.container_path": "no container here; host_path is used",
    "checkpoint_storage.propagation": "no container here; ignored",
    "checkpoint_storage.checkpoint_path": "Determined removed it; host_path is used",
    "checkpoint_storage.tensorboard_path": "TensorBoard files go to the run directory",
    "profiling.sync_timings": "ignored: the trace has the times of the device",
    "optimizations.auto_tune_tensor_fusion": _HOROVOD,
    "optimizations.average_training_metrics": "training metrics are always averaged over the ranks",
    "optimizations.grad_updates_size_file": _HOROVOD,
    "optimizations.gradient_compression": _HOROVOD,
    "optimizations.tensor_fusion_cycle_time": _HOROVOD,
    "optimizations.tensor_fusion_threshold": _HOROVOD,
}

_SECTIONS: Mapping[str, frozenset[str]] = {
    "searcher": frozenset(
        {
            "name",
            "metric",
            "smaller_is_better",
            "max_length",
            "max_steps",
            "source_checkpoint_uuid",
            "max_trials",
            "max_concurrent_trials",
            "mode",
            "divisor",
            "max_rungs",
            "num_rungs",
            "bracket_rungs",
            "stop_once",
            "budget",
            "max_time",
            "time_metric",
        },
    ),
    "resources": frozenset({"slots_per_trial"}),
    "reproducibility": frozenset({"experiment_seed"}),
    "environment": frozenset({"environment_variables"}),
    "profiling": frozenset({"enabled", "begin_on_batch", "end_after_batch"}),
    "checkpoint_storage": frozenset(
        {
            "type",
            "host_path",
            "storage_path",
            "save_experiment_best",
            "save_trial_best",
            "save_trial_latest",
            "bucket",
            "prefix",
            "access_key",
            "secret_key",
            "endpoint_url",
            "container",
            "connection_string",
            "account_url",
            "credential",
            "url",
            "options",
        }
    ),
    "optimizations": frozenset({"aggregation_frequency", "average_aggregated_gradients", "mixed_precision"}),
}


_UNKNOWN = "unknown field, ignored"


def unknown(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield ``(field, did you mean)`` for each field that no experiment config has."""
    for field, note in notices(document):
        if note.startswith(_UNKNOWN):
            yield field, note.removeprefix(_UNKNOWN)


def notices(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield ``(field, notice)`` for each field of the config that is not acted on, in the config's order."""
    for name, value in document.items():
        if name in IGNORED and value is not None:
            yield name, IGNORED[name]
        elif name not in USED:
            yield str(name), _UNKNOWN + did_you_mean(str(name), USED | IGNORED.keys())
        elif name in _SECTIONS and isinstance(value, Mapping):
            yield from _section(name, value)


def _section(section: str, values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    known = {path.partition(".")[2] for path in IGNORED if path.startswith(section + ".")} | _SECTIONS[section]
    for name, value in values.items():
        path = f"{section}.{name}"
        if path == "checkpoint_storage.container_path" and values.get("type") == "directory":
            continue
        if path in IGNORED and value is not None:
            yield path, IGNORED[path]
        elif name not in known:
            yield path, _UNKNOWN + did_you_mean(str(name), known)
