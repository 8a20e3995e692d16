"""Configuration of a run, from ``init()`` and from ``ds-train``."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any

from trial_runtime._cluster_info import ClusterInfo, get_cluster_info
from trial_runtime._storage.remote import Location, is_url, with_environment_options
from trial_runtime._storage.urls import remote_of
from trial_runtime.errors import InvalidExperimentException

logger = logging.getLogger("trial_runtime.pytorch")


@dataclasses.dataclass
class RunSettings:
    """The configuration of a run.

    Attributes:
        hparams: hyperparameters; None when none were given.
        exp_conf: experiment config; None when none was given.
        seed: seed for every rank; None leaves the generators as the script seeded them.
        directory: where metrics and TensorBoard files go; None writes none.
        checkpoint_directory: where checkpoints go, one folder each.
        info: the run that ``ds-train`` started, None without it.
        tensorboard: where TensorBoard files go, when not below ``directory``.
        remote: where checkpoints are kept too, None: nowhere.
    """

    hparams: dict[str, Any] | None
    exp_conf: dict[str, Any] | None
    seed: int | None
    directory: Path | None
    checkpoint_directory: Path
    info: ClusterInfo | None = None
    tensorboard: Path | None = None
    remote: Location | None = None

    @classmethod
    def collect(
        cls, hparams: dict[str, Any] | None, exp_conf: dict[str, Any] | None, run_dir: Path | str | None
    ) -> RunSettings:
        """Collect what was given, completed by ``ds-train``'s description of the run."""
        info = get_cluster_info()
        if info is not None:
            return cls(
                hparams=info.trial.hparams if hparams is None else hparams,
                exp_conf=info.trial._config if exp_conf is None else exp_conf,
                seed=info.trial.trial_seed,
                directory=Path(run_dir or info.run.directory),
                checkpoint_directory=Path(run_dir) / "checkpoints" if run_dir else Path(info.run.checkpoint_directory),
                info=info,
                remote=None if info.run.storage is None else with_environment_options(info.run.storage),
            )
        seed = ((exp_conf or {}).get("reproducibility") or {}).get("experiment_seed")
        return cls(
            hparams=hparams,
            exp_conf=exp_conf,
            seed=None if seed is None else int(seed),
            directory=None if run_dir is None else Path(run_dir),
            checkpoint_directory=_checkpoint_directory(exp_conf or {}, run_dir),
            remote=remote_of(exp_conf or {}),
        )

    @property
    def metrics_path(self) -> Path | None:
        """Return the JSON lines file that metrics are appended to."""
        return None if self.directory is None else self.directory / "metrics.jsonl"

    @property
    def tensorboard_directory(self) -> Path:
        """Return the directory of TensorBoard files: below the run's, else ``tensorboard`` in the working directory."""
        return self.tensorboard or (self.directory or Path()) / "tensorboard"


def _checkpoint_directory(exp_conf: dict[str, Any], run_dir: Path | str | None) -> Path:
    """Return ``checkpoint_storage`` of the experiment config if it is a directory, else ``checkpoints`` in the
    run's."""
    if run_dir is not None:
        return Path(run_dir) / "checkpoints"
    storage = exp_conf.get("checkpoint_storage") or {}
    if isinstance(storage, str):
        return Path("checkpoints") if is_url(storage) else Path(storage)
    kind = storage.get("type")
    if kind == "directory" and storage.get("container_path"):
        return Path(storage["container_path"])
    if kind == "shared_fs" and storage.get("host_path"):
        return Path(storage["host_path"]) / (storage.get("storage_path") or "")
    return Path("checkpoints")


def batch_sizes(hparams: dict[str, Any] | None, ranks: int, is_chief: bool = True) -> tuple[int | None, int | None]:
    """Return the samples a rank and of all ranks, from the hyperparameter ``global_batch_size``; None without it.

    The chief warns where the ranks cannot share it equally.

    Raises:
        InvalidExperimentException: when it is no int, or smaller than the number of ranks.
    """
    size = (hparams or {}).get("global_batch_size")
    if not size:
        return None, None
    if not isinstance(size, int):
        raise InvalidExperimentException(
            f"The hyperparameter global_batch_size must be an int, got {size!r} ({type(size).__name__})."
        )
    if size < ranks:
        raise InvalidExperimentException(
            f"The hyperparameter global_batch_size ({size}) must be at least the number of ranks ({ranks})."
        )
    ranks = max(ranks, 1)
    share = size // ranks
    if share * ranks != size and is_chief:
        logger.warning(f"global_batch_size {size} does not divide among {ranks} ranks; {share * ranks} is used.")
    return share, share * ranks
