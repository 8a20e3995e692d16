"""The API is Determined's: every public name, argument, default and member, compared with the installed package."""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from ds_migrate.names import Verdict, verdict_of

pytest.importorskip("determined")

MODULES = [
    "",
    "core",
    "errors",
    "experimental.client",
    "gpu",
    "horovod",
    "pytorch",
    "pytorch.deepspeed",
    "pytorch.samplers",
    "common",
    "common.check",
    "tensorboard",
    "tensorboard.metric_writers.pytorch",
    "util",
]

# What is not the same on purpose. Each reason is a phrase of docs/differences.md.
DIFFERENCES = {
    "Contexts of the Core API": [
        "core: SearcherContextMissing, DummyCheckpointContext, DummyExperimentalCoreContext, DummyPreemptContext",
        "core: DummyProfilerContext, DummySearcherContext, DummySearcherOperation, DummyTrainContext",
        "core: CheckpointContext.__init__, Context.__init__, Context.close, ExperimentalCoreContext.__init__",
        "core: PreemptContext.__init__, ProfilerContext.__init__, SearcherContext.__init__",
        "core: SearcherOperation.__init__, TrainContext.__init__",
    ],
    "The cluster's client": [
        "experimental.client: Checkpoint.__init__, Checkpoint.download, Experiment.__init__, Trial.__init__",
    ],
    "Uploads of TensorBoard files": [
        "tensorboard: AzureTensorboardManager, S3TensorboardManager, SharedFSTensorboardManager, TensorboardManager",
        "tensorboard: BatchMetricWriter, build, get_base_path, get_experiment_sync_path, get_sync_path",
        "tensorboard: get_metric_writer",
    ],
    "inner parts of Determined's harness": [
        "horovod: create_hostlist_arg, create_performance_args, create_run_command",
        "util: check_sshd, forward_signals, legacy_trial_entrypoint_to_script, make_metrics, make_timing_log",
        "util: mask_checkpoint_storage, mask_config_dict, match_legacy_trial_class, rmtree_nfs_safe",
        "util: signal_process_tree, validate_batch_metrics, write_user_code",
    ],
    "TensorFlow": [
        "core: DistributedContext.from_tf_config, DummyDistributedContext.from_tf_config",
    ],
    "A cluster's information objects for its tasks": [
        ": ClusterInfo.__init__, TrialInfo.__init__, EnvContext, ExperimentConfig, RendezvousInfo, ResourcesInfo",
        ": LegacyTrial, TrialController, TrialContext.__init__",
        "gpu: GPU, GPUProcess, float_or_default, get_gpu_processes, get_gpus",
        "errors: EnterpriseOnlyError, CheckpointStateException, MultipleDownloadsFailed, NoDirectStorageAccess",
        "errors: ProxiedDownloadFailed, SkipWorkloadException, StopLoadingImplementation, WorkerError",
        "errors: WorkerFinishedGracefully",
    ],
    "`init(run_dir=...)`": [
        "pytorch: init",
        "pytorch.deepspeed: init",
    ],
    "Lengths of an experiment config that the conversion divided": [
        "pytorch.deepspeed: DeepSpeedTrialContext.get_experiment_config",
    ],
    "`load_trial_from_checkpoint_path(trust_checkpoint=True)`": [
        "pytorch: load_trial_from_checkpoint_path",
    ],
    "explains what is wrong with the checkpoint": [
        "errors: InvalidCheckpointException.__init__, CheckpointNotFound.__init__",
    ],
}


def differences() -> Iterator[tuple[str, str]]:
    for lines in DIFFERENCES.values():
        for line in lines:
            module, _, names = line.partition(": ") if not line.startswith(":") else ("", "", line[2:])
            yield from ((module, name) for name in names.split(", "))


def is_intended(module: str, name: str) -> bool:
    return (module, name) in set(differences()) or is_refused(module, name)


def is_refused(module: str, name: str) -> bool:
    """Return whether the name is there to explain what to do instead; see the table in docs/differences.md."""
    return verdict_of(f"determined.{module}.{name}") is Verdict.REFUSE


def public(holder: Any) -> dict[str, Any]:
    """The functions, classes and members that a package itself defines, by name."""
    found = {}
    for name in dir(holder):
        value = getattr(holder, name)
        own = getattr(value, "__module__", None) or ""
        if (
            name.startswith("_")
            or inspect.ismodule(value)
            or isinstance(value, TypeVar)
            or not own.startswith(("determined", "trial_runtime"))
        ):
            continue
        found[name] = value
    return found


def parameters(function: Any) -> list[tuple[str, Any, Any]]:
    found = []
    for parameter in inspect.signature(function).parameters.values():
        default = parameter.default
        if hasattr(default, "value") and default.__class__.__name__ in ("Batch", "Epoch"):
            default = (default.__class__.__name__, default.value)  # periods have no equality
        elif isinstance(default, enum.Enum):
            default = str(default)
        elif inspect.isfunction(default):
            default = (default.__name__, [one.name for one in inspect.signature(default).parameters.values()])
        found.append((parameter.name, parameter.kind, default))
    return found


def members(cls: type) -> set[str]:
    fields = {field.name for field in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else set()
    return {name for name in dir(cls) if not name.startswith("_")} | fields


def compare(module: str) -> Iterator[tuple[str, str]]:
    """Names that differ, and how."""
    suffix = f".{module}" if module else ""
    theirs = importlib.import_module(f"determined{suffix}")
    ours = importlib.import_module(f"trial_runtime{suffix}")
    for name, value in public(theirs).items():
        if not hasattr(ours, name):
            yield name, "missing"
            continue
        mine = getattr(ours, name)
        if not inspect.isclass(value):
            if inspect.isfunction(value) and parameters(value) != parameters(mine):
                yield name, f"{parameters(value)} != {parameters(mine)}"
            continue
        for member in sorted(members(value) - members(mine)):
            yield f"{name}.{member}", "missing"
        for member in ["__init__", *sorted(members(value) & members(mine))]:
            one, other = getattr(value, member, None), getattr(mine, member, None)
            if not inspect.isroutine(one) or "pydantic" in getattr(one, "__module__", ""):
                continue
            if inspect.isroutine(other) and _differ(one, other):
                yield f"{name}.{member}", f"{parameters(one)} != {parameters(other)}"


def _differ(one: Any, other: Any) -> bool:
    try:
        return parameters(one) != parameters(other)
    except ValueError:  # no signature: a slot of a builtin
        return False


@pytest.mark.parametrize("module", MODULES)
def test_names_arguments_and_defaults_are_the_same(module: str) -> None:
    found = [f"{name}: {how}" for name, how in compare(module) if not is_intended(module, name)]
    assert found == []


@pytest.mark.parametrize("module", MODULES)
def test_no_difference_is_listed_that_there_is_not(module: str) -> None:
    there = {name for name, _ in compare(module)}
    listed = {name for other, name in differences() if other == module}
    assert listed - there - {"Context"} == set()


@pytest.mark.parametrize("reason", DIFFERENCES)
def test_every_difference_is_explained(reason: str) -> None:
    page = Path(__file__).parents[2] / "docs" / "differences.md"
    assert reason in re.sub(r"\s+", " ", page.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("module", "enum"),
    [("pytorch", "Reducer"), ("pytorch", "LRScheduler.StepMode"), ("core", "DownloadMode"), ("core", "EarlyExitReason"),
     ("core", "PreemptMode"), ("core", "SearcherMode"), ("core", "TensorboardMode"), ("core", "Unit")],
)  # fmt: skip
def test_enumerations_have_the_same_members_and_values(module: str, enum: str) -> None:
    def values(package: str) -> dict[str, Any]:
        found: Any = importlib.import_module(f"{package}.{module}")
        for part in enum.split("."):
            found = getattr(found, part)
        return {member.name: member.value for member in found}

    assert values("trial_runtime") == values("determined")


@pytest.mark.parametrize(
    "name",
    ["InternalException", "InvalidExperimentException", "InvalidDataTypeException", "InvalidConfigurationException",
     "InvalidModelException", "CheckpointNotFound"],
)  # fmt: skip
def test_exceptions_are_caught_by_the_same_base_classes(name: str) -> None:
    import determined.errors
    import trial_runtime.errors

    def bases(errors: Any) -> list[str]:
        return [base.__name__ for base in getattr(errors, name).__mro__]

    assert [base for base in bases(trial_runtime.errors) if base in bases(determined.errors)] == bases(
        determined.errors
    )


def test_a_log_line_has_the_same_format() -> None:
    import determined
    import trial_runtime

    assert determined.LOG_FORMAT == trial_runtime.LOG_FORMAT
