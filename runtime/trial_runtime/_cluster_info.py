"""Description of the run that a rank belongs to: the counterpart of ``determined.get_cluster_info()``.

``ds-train`` describes a run once and hands the description to every rank in the environment variable
``DS_TRAIN_CLUSTER_INFO`` (the path of a JSON file, or the JSON text itself). Outside of ``ds-train`` the variable is
absent and :func:`get_cluster_info` returns None, exactly as Determined does off its cluster.

Nothing here imports torch, so launchers and tools stay quick.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from trial_runtime._redaction import SECRETS_VARIABLE, restored
from trial_runtime._typed_fields import checked

ENV_VAR = "DS_TRAIN_CLUSTER_INFO"
CLUSTER_INFO_FILE = "cluster_info.json"
"""File in a run directory: the description that its ranks were given."""

LATEST_FILE = "latest"
"""File in the checkpoint directory that names the newest committed checkpoint, one line, relative to the directory."""

SECRET_VARIABLE = "TRIAL_RUNTIME_SECRET"
"""Environment variable with a secret that all ranks share; the objects that they exchange are signed with it."""

TRUST_VARIABLE = "DS_TRAIN_TRUST_CHECKPOINT"
"""Environment variable: ``1`` trusts the checkpoints that are given, whoever wrote them (``--trust-checkpoint``)."""

_CHECKPOINT = re.compile(r"\d{8,}-[0-9a-f]{8}")


@dataclasses.dataclass(frozen=True)
class Length:
    """A training length or a period.

    Attributes:
        value: how many, at least 1.
        unit: ``"batches"`` (of the trial: one call of ``train_batch`` for a PyTorchTrial, one optimizer step for a
            DeepSpeedTrial) or ``"epochs"`` (passes over the training loader). Records are turned into batches before.
    """

    value: int
    unit: Literal["batches", "epochs"]


@dataclasses.dataclass(frozen=True)
class FitDefaults:
    """Defaults of ``Trainer.fit()`` from the experiment config, for arguments that its caller left unset.

    The names are those of ``fit()``'s parameters, but for some that Determined had not. None: not in the config.

    Attributes:
        stop_on_nan: end a run that diverged.
        early_stopping: after how many validations without improvement to end a run.
        profiled_batches: the first and the last batch to profile, counted from 0.
        validate_only: validate the checkpoint that is given, and end.
        log_grad_norm: report the norm of a DeepSpeedTrial's gradients.
    """

    max_length: Length | None = None
    validation_period: Length | None = None
    checkpoint_period: Length | None = None
    reporting_period: Length | None = None
    checkpoint_policy: str | None = None
    step_zero_validation: bool | None = None
    test_mode: bool = False
    stop_on_nan: bool = False
    early_stopping: int | None = None
    profiled_batches: Sequence[int] | None = None
    validate_only: bool = False
    log_grad_norm: bool = False


@dataclasses.dataclass(frozen=True)
class RunInfo:
    """Facts of a run that the runtime needs beyond Determined's public fields.

    Attributes:
        directory: the run directory (absolute), shared by all ranks; holds config, log, metrics and TensorBoard files.
        checkpoint_directory: where this run's checkpoints go (absolute), one folder a checkpoint.
        storage: URL where they are kept too, None: nowhere. The driver's options are not here: they may hold keys.
        fit: defaults for ``Trainer.fit()``.
        searcher_metric: validation metric that decides which checkpoint is best; None when the config names none.
        smaller_is_better: whether a smaller ``searcher_metric`` is better.
        save_trial_best: how many of the best checkpoints ``ds-train`` keeps when the run has ended; None keeps all.
        save_trial_latest: how many of the latest checkpoints it keeps then; None keeps all.
        aggregation_frequency: ``optimizations.aggregation_frequency``, for a PyTorchTrial.
        average_aggregated_gradients: ``optimizations.average_aggregated_gradients``, for a PyTorchTrial.
        precision: what ``ds-train --precision`` asked of the engines; None: what their configs name.
        name: the experiment's name; a tracker's project.
        log_with: the experiment trackers that metrics are sent to.
        launch_layer: the launch layer that the entrypoint named, or ``"torch_distributed"``. ``"horovod"`` did not
            broadcast buffers in the forward pass, the others did.
    """

    directory: str
    checkpoint_directory: str
    storage: str | None = None
    fit: FitDefaults = FitDefaults()
    searcher_metric: str | None = None
    smaller_is_better: bool = True
    save_trial_best: int | None = None
    save_trial_latest: int | None = None
    aggregation_frequency: int = 1
    average_aggregated_gradients: bool = True
    precision: str | None = None
    name: str = ""
    log_with: list[str] = dataclasses.field(default_factory=list)
    launch_layer: str = "torch_distributed"

    @property
    def metrics_path(self) -> Path:
        """Return the JSON lines file of all reported metrics; only the chief writes it."""
        return Path(self.directory) / "metrics.jsonl"

    @property
    def tensorboard_directory(self) -> Path:
        """Return the folder of TensorBoard event files."""
        return Path(self.directory) / "tensorboard"


@dataclasses.dataclass(frozen=True)
class TrialInfo:
    """The trial that is running. Public fields as in Determined; the experiment config is ``_config`` there too."""

    trial_id: int
    experiment_id: int
    trial_seed: int
    hparams: dict[str, Any]
    _config: dict[str, Any]
    _steps_completed: int = 0
    _trial_run_id: int = 1
    _debug: bool = False


@dataclasses.dataclass(frozen=True)
class ClusterInfo:
    """The run that this process is a rank of.

    Attributes:
        trial: hyperparameters, ids and seed.
        run: directories and the defaults of ``Trainer.fit()``; not part of Determined's class.
        slot_ids: the slots of this node, from 0.
        container_addrs: one address a node, ordered by node rank.
        container_rank: this node's rank.
        container_slot_counts: how many slots each node has.
        task_type: always ``"TRIAL"``.
        latest_checkpoint: absolute path or URL of the checkpoint to start from, or None. It is the run's own newest
            one, else the one given to ``ds-train``: a run that was started from a checkpoint, crashed and was started
            again resumes where it crashed. Decided once for all ranks, before they start.
    """

    trial: TrialInfo
    run: RunInfo
    slot_ids: list[int]
    container_addrs: list[str] = dataclasses.field(default_factory=lambda: ["127.0.0.1"])
    container_rank: int = 0
    container_slot_counts: list[int] = dataclasses.field(default_factory=lambda: [1])
    task_type: str = "TRIAL"
    task_id: str = ""
    allocation_id: str = ""
    cluster_id: str = ""
    agent_id: str = ""
    master_url: str = ""
    session_token: str = ""
    latest_checkpoint: str | None = None

    @property
    def gpu_uuids(self) -> list[str]:
        """Return the UUIDs of this node's GPUs. Imports torch."""
        from trial_runtime import gpu

        return gpu.get_gpu_uuids()

    @property
    def user_data(self) -> dict[str, Any]:
        """Return the ``data`` field of the experiment config."""
        data = self.trial._config.get("data")
        return data if isinstance(data, dict) else {}

    def to_json(self) -> str:
        """Return this description as one JSON object."""
        return json.dumps(dataclasses.asdict(self), indent=2)

    @classmethod
    def from_json(cls, text: str) -> ClusterInfo:
        """Return the description that :meth:`to_json` wrote.

        Raises:
            ValueError: it did not write this.
        """
        try:
            fields = json.loads(text)
            trial, run = dict(fields.pop("trial")), dict(fields.pop("run"))
            fit: dict[str, Any] = {
                name: checked(Length(**value)) if isinstance(value, dict) else value
                for name, value in dict(run.pop("fit", {})).items()
            }
            described = RunInfo(fit=checked(FitDefaults(**fit)), **run)
            info = checked(cls(trial=checked(TrialInfo(**trial)), run=checked(described), **fields))
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"is no description of a run ({error})") from error
        if "\0" in info.run.directory + info.run.checkpoint_directory:
            raise ValueError("is no description of a run (a path holds a null character)")
        return info


def newest_checkpoint(directory: Path) -> str | None:
    """Return the absolute path of the newest committed checkpoint under ``directory``; None without one.

    It is the one that the file ``latest`` names. Where a user removed that one, or the process was killed before it
    wrote the file, it is the one with most batches.
    """
    with contextlib.suppress(OSError, ValueError):  # ValueError: no UTF-8, or a null character
        name = (directory / LATEST_FILE).read_text(encoding="utf-8").strip()
        if name == Path(name).name and not name.startswith(".") and name and (directory / name).is_dir():
            return str(directory / name)
    whole = [file.parent for file in directory.glob("*/manifest.json") if _CHECKPOINT.fullmatch(file.parent.name)]
    return str(max(whole, key=lambda folder: folder.name)) if whole else None  # names begin with their batches, padded


def newest_of_run(path: Path) -> str | None:
    """Return the newest checkpoint of a run directory or of a folder of checkpoints; None when ``path`` is neither.

    Returns:
        An absolute path. Where the run's config keeps checkpoints in a remote storage and none is here, the URL there.
    """
    inside = newest_checkpoint(path) or newest_checkpoint(path / "checkpoints")
    if inside is not None:
        return str(Path(inside).resolve())
    try:
        run = ClusterInfo.from_json((path / CLUSTER_INFO_FILE).read_text(encoding="utf-8")).run
    except (OSError, ValueError):
        return None
    return newest_checkpoint(Path(run.checkpoint_directory)) or run.storage


@functools.lru_cache(maxsize=1)
def _from_environment(value: str, secrets: str) -> ClusterInfo:
    text = value if value.lstrip().startswith("{") else Path(value).read_text(encoding="utf-8")
    info = ClusterInfo.from_json(text)
    if not secrets:
        return info
    known = json.loads(secrets)
    config = restored(info.trial._config, known["config"])
    hparams = restored(info.trial.hparams, known["hparams"])
    return dataclasses.replace(info, trial=dataclasses.replace(info.trial, _config=config, hparams=hparams))


def get_cluster_info() -> ClusterInfo | None:
    """Return the run that this process is a rank of; None when ``ds-train`` did not start it.

    The same object is returned each time while the environment stays the same.
    """
    value = os.environ.get(ENV_VAR)
    return _from_environment(value, os.environ.get(SECRETS_VARIABLE, "")) if value else None
