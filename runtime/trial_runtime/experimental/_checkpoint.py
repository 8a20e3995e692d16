"""Checkpoints of runs, as Determined's client gives them."""

from __future__ import annotations

import dataclasses
import datetime
import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trial_runtime._atomic_file import write_whole
from trial_runtime._refusal import refused_method
from trial_runtime.errors import InvalidCheckpointException
from trial_runtime.experimental._metrics import TrialMetrics
from trial_runtime.experimental._sorting import CheckpointState, DownloadMode

if TYPE_CHECKING:
    from trial_runtime.experimental._trial import Trial

_MANIFEST, _METADATA = "manifest.json", "metadata.json"
_NAME = "determined.experimental.client.Checkpoint."


@dataclasses.dataclass
class CheckpointTrainingMetadata:
    """The training behind a checkpoint.

    Attributes:
        validation_metrics: ``{"avgMetrics": {...}}``, of the validation at the checkpoint's batch; empty without one.
    """

    experiment_config: dict[str, Any]
    experiment_id: int
    trial_id: int
    hparams: dict[str, Any]
    validation_metrics: dict[str, Any]


class Checkpoint:
    """A checkpoint of a run.

    Args:
        path: its folder; where it will be, while it is in a remote storage only.
        trial: the trial that it belongs to; None when that is not known.
        batches: batches trained; None: the manifest knows.

    Attributes:
        uuid: its name.
        state: always complete.
    """

    uuid: str
    state: CheckpointState
    _trial: Trial | None
    _batches: int | None

    def __init__(self, path: Path, trial: Trial | None = None, batches: int | None = None) -> None:
        self.uuid = path.name
        self.state = CheckpointState.COMPLETED
        self._path = path
        self._trial = trial
        self._batches = batches

    @property
    def metadata(self) -> dict[str, Any]:
        """Return ``steps_completed``, what was saved with the checkpoint, and what :meth:`add_metadata` added.

        For a trial's checkpoint also its manifest: progress, versions, and sizes and hashes of its files. What
        Determined wrote into one of its own.

        Raises:
            InvalidCheckpointException: one of the files is damaged.
        """
        facts: dict[str, Any] = {} if self._batches is None else {"steps_completed": self._batches}
        for file in (self._path / _MANIFEST, self._path / _METADATA, self._added):
            if file.is_file():
                facts |= _read_fields(file)
                progress = facts.get("progress")
                if isinstance(progress, dict) and "batches" in progress:
                    facts.setdefault("steps_completed", progress["batches"])
        return facts

    @property
    def resources(self) -> dict[str, int]:
        """Return the sizes of its files in bytes, by their paths relative to it; empty when it is not here."""
        if not (self._path / _MANIFEST).is_file():
            return {}
        files = _read_fields(self._path / _MANIFEST).get("files")
        described = files.items() if isinstance(files, dict) else ()
        return {name: about["size"] for name, about in described if isinstance(about, dict) and "size" in about}

    @property
    def training(self) -> CheckpointTrainingMetadata | None:
        """Return what it was trained with; None when the run is not known."""
        if self._trial is None:
            return None
        values = self._trial._validations().get(self.metadata.get("steps_completed", -1))
        return CheckpointTrainingMetadata(
            experiment_config=self._trial.experiment_config,
            experiment_id=self._trial.experiment_id,
            trial_id=self._trial.id,
            hparams=self._trial.hparams,
            validation_metrics={} if values is None else {"avgMetrics": values},
        )

    @property
    def report_time(self) -> str | None:
        """Return when it was committed, in ISO format; None when it is not here."""
        manifest = self._path / _MANIFEST
        if not manifest.is_file():
            return None
        return datetime.datetime.fromtimestamp(manifest.stat().st_mtime, datetime.timezone.utc).isoformat()

    def download(self, path: str | Path | None = None, mode: DownloadMode = DownloadMode.AUTO) -> str:
        """Return the folder with its files.

        Args:
            path: a folder to copy them to; one that has them already is left as it is, and files of another checkpoint
                that an earlier call copied there are replaced. By default they stay where they are.
            mode: accepted and not used.

        Raises:
            InvalidCheckpointException: it has links to files elsewhere, or ``path`` a damaged manifest.
        """
        from trial_runtime.pytorch._checkpoints import manifest

        del mode
        source = self._fetched()
        if outside := manifest.links_outside(source):
            raise InvalidCheckpointException(f"Checkpoint {source} is damaged: {'; '.join(outside)}.")
        if path is None:
            return str(source)
        target = Path(path)
        if not _is_copy(source, target):
            _remove_copied(target)
            # The manifest comes last, so that a copy that was interrupted is made again.
            shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns(_MANIFEST))
            if (source / _MANIFEST).is_file():
                shutil.copy2(source / _MANIFEST, target / _MANIFEST)
        return str(target)

    def load(self, path: str | None = None, **kwargs: Any) -> Any:
        """Return the checkpoint's trial with its weights, made by
        :func:`trial_runtime.pytorch.load_trial_from_checkpoint_path`.

        Args:
            path: as for :meth:`download`.
            kwargs: arguments for ``torch.load``.
        """
        from trial_runtime.pytorch import load_trial_from_checkpoint_path

        return load_trial_from_checkpoint_path(self.download(path), torch_load_kwargs=kwargs)

    @staticmethod
    def load_from_path(path: str, **kwargs: Any) -> Any:
        """Return the trial of a checkpoint's folder; see :meth:`load`."""
        from trial_runtime.pytorch import load_trial_from_checkpoint_path

        return load_trial_from_checkpoint_path(path, torch_load_kwargs=kwargs)

    def write_metadata_file(self, path: str) -> None:
        """Write :attr:`metadata` to a file, as JSON."""
        Path(path).write_text(json.dumps(self.metadata, indent=2) + "\n", encoding="utf-8")

    def add_metadata(self, metadata: dict[str, Any]) -> None:
        """Add to :attr:`metadata`; it is kept in a file beside the checkpoint, which itself stays as it was saved."""
        write_whole(self._added, json.dumps({**self._own_metadata(), **metadata}, indent=2) + "\n")

    def remove_metadata(self, keys: list[str]) -> None:
        """Remove from what :meth:`add_metadata` added."""
        kept = {key: value for key, value in self._own_metadata().items() if key not in keys}
        write_whole(self._added, json.dumps(kept, indent=2) + "\n")

    def delete(self) -> None:
        """Remove the checkpoint, from a remote storage too.

        Raises:
            InvalidCheckpointException: it is a folder without a manifest.
        """
        from trial_runtime.pytorch._checkpoints import manifest

        manifest.remove(self._path)
        self._added.unlink(missing_ok=True)
        storage = None if self._trial is None else self._trial._run.info.run.storage
        if storage is not None:
            from trial_runtime._storage.remote import call, with_environment_options

            call(with_environment_options(storage), "remove", name=self.uuid)

    def get_metrics(self, group: str | None = None) -> Iterable[TrialMetrics]:
        """Return the metrics that were reported at the checkpoint's batch, of one group or of training and
        validation."""
        if self._trial is None:
            return []
        steps = self.metadata.get("steps_completed")
        groups = ("training", "validation") if group is None else (group,)
        return [one for name in groups for one in self._trial.iter_metrics(name) if one.steps_completed == steps]

    def reload(self) -> None:
        """Do nothing: all is read when it is asked for."""

    remove_files = refused_method(_NAME + "remove_files")
    get_pachyderm_commit = refused_method(_NAME + "get_pachyderm_commit")

    @property
    def _added(self) -> Path:
        return self._path.with_name(f"{self.uuid}.metadata.json")

    def _own_metadata(self) -> dict[str, Any]:
        return _read_fields(self._added) if self._added.is_file() else {}

    def _fetched(self) -> Path:
        """Return the folder, fetched from the run's remote storage when it is only there."""
        if self._path.is_dir() or self._trial is None:
            return self._path
        from trial_runtime import core
        from trial_runtime._storage.remote import with_environment_options
        from trial_runtime.pytorch._checkpoints.store import CheckpointStore

        url = self._trial._run.info.run.storage
        remote = None if url is None else with_environment_options(url)
        return CheckpointStore(self._path.parent, core.DummyDistributedContext(), remote).find(self.uuid)

    def __repr__(self) -> str:
        return f"Checkpoint(uuid={self.uuid!r})"


def _is_copy(source: Path, target: Path) -> bool:
    name = _MANIFEST if (source / _MANIFEST).is_file() else _METADATA
    there = target / name
    return there.is_file() and (source / name).is_file() and there.read_bytes() == (source / name).read_bytes()


def _remove_copied(folder: Path) -> None:
    """Remove the files of a checkpoint that was copied into a folder, and nothing else in it."""
    if (folder / _MANIFEST).is_file():
        from trial_runtime.pytorch._checkpoints import manifest

        try:
            names = manifest.read(folder)["files"]
        except ValueError as error:
            raise InvalidCheckpointException(f"{folder} is no copy of a checkpoint: {_MANIFEST}: {error}.") from error
        (folder / _MANIFEST).unlink()
        for name in names:
            file = folder / name
            if file.resolve().is_relative_to(folder.resolve()):
                file.unlink(missing_ok=True)


def _read_fields(file: Path) -> dict[str, Any]:
    try:
        fields = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InvalidCheckpointException(f"Checkpoint {file.parent} is damaged: {file.name}: {error}.") from error
    if not isinstance(fields, dict):
        raise InvalidCheckpointException(f"Checkpoint {file.parent} is damaged: {file.name} holds no fields.")
    return fields
