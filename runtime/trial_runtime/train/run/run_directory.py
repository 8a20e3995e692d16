"""The run directory, which holds all that one run reads and writes::

runs/mnist-3/
    .gitignore          the run ignores itself in git
    run.json            id, number, seed, status (running | completed | failed | stopped), ids in trackers
    config.yaml         the experiment config as it was given
    cluster_info.json   the run's description for its ranks: get_cluster_info()
    lock                held by rank 0 while it runs
    log/rank_0.log      what each rank printed
    metrics.jsonl       every reported metric, one JSON object a line
    trial.json          status, progress and metadata that a program without a trial reported
    tensorboard/        event files
    checkpoints/        unless the config names another place
"""

from __future__ import annotations

import dataclasses
import fcntl
import os
import re
import secrets
from pathlib import Path
from typing import IO

from trial_runtime._cluster_info import ClusterInfo, RunInfo, TrialInfo, newest_checkpoint
from trial_runtime._redaction import masked_hparams
from trial_runtime._run_record import RUN_FILE, read_record, update_record
from trial_runtime._storage.urls import CheckpointStorage
from trial_runtime.train.config.errors import ConfigError
from trial_runtime.train.config.run_plan import RunPlan

DEFAULT_BASE = Path("runs")
_ID = re.compile(r"[\w-]{1,64}", re.ASCII)  # part of the checkpoints' folder
_MADE_FIRST = (".gitignore", "lock", f".{RUN_FILE}.tmp")
"""What a start that was killed before it wrote the record leaves behind."""
SUPERVISED_SEARCH = "DS_TRAIN_SUPERVISED_SEARCH"
"""Environment variable with the process id of the ``ds-train`` of a search that started one for a trial."""
SUPERVISED = "DS_TRAIN_SUPERVISED"
"""Environment variable with the process id of the ``ds-train`` that started a rank and watches it."""


@dataclasses.dataclass
class RunDirectory:
    """One run's directory and its record.

    Attributes:
        path: absolute.
        id: random, so that runs of the same name that share a checkpoint storage stay apart.
        number: counts the runs of one name; trial id and experiment id.
        seed: of all random generators, on every rank.
        status: ``running``, ``completed``, ``failed`` or ``stopped``. A run that was killed remains ``running``.
    """

    path: Path
    id: str
    number: int
    seed: int
    status: str = "running"

    def record(self, status: str, reason: str | None = None) -> None:
        """Change the status, with the reason of an unusual end, and write the record, whole or not at all."""
        self.status = status
        update_record(self.path, id=self.id, number=self.number, seed=self.seed, status=self.status, reason=reason)


def open_run(directory: Path | None, name: str, seed: int | None) -> tuple[RunDirectory, bool]:
    """Make the directory of a new run, or open the one of a run to continue.

    Args:
        directory: the run directory that the user named; None: a new ``runs/<name>-<number>``.
        name: the experiment's name.
        seed: the config's seed; None draws one for a new run.

    Returns:
        The run, and whether it is one that is continued.

    Raises:
        ConfigError: ``directory`` holds something else than a run, or cannot be made.
    """
    if directory is not None and (directory / RUN_FILE).is_file():
        return read_directory(directory.resolve()), True
    path, number = make_directory(directory, name)
    run = RunDirectory(path, secrets.token_hex(4), number, secrets.randbelow(2**31) if seed is None else seed)
    run.record("running")
    return run, False


def keep_record(info: ClusterInfo) -> None:
    """Write the record of a run that rank 0 opened where this machine has a separate disk, so that any can resume it.

    Raises:
        OSError: the run directory cannot be made here.
    """
    path = Path(info.run.directory)
    if not (path / RUN_FILE).is_file():
        path.mkdir(parents=True, exist_ok=True)
        RunDirectory(path, info.task_id, info.trial.trial_id, info.trial.trial_seed).record("running")


def make_directory(directory: Path | None, name: str) -> tuple[Path, int]:
    """Make the directory of a new run, ignored by git.

    Args:
        directory: the one that the user named; None: a new ``runs/<name>-<number>``.
        name: the experiment's name.

    Returns:
        Its absolute path and its number among those of the name.

    Raises:
        ConfigError: it holds something already, or cannot be made.
    """
    try:
        if directory is None:
            path, number = _new(DEFAULT_BASE.resolve(), _folder_name(name))
        else:
            directory.mkdir(parents=True, exist_ok=True)
            path, number = directory.resolve(), 1
            if any(entry.name not in _MADE_FIRST for entry in path.iterdir()):
                raise ConfigError(f"--run-dir {directory}: is not empty and not a run directory (it has no {RUN_FILE})")
    except OSError as error:
        advice = "name another folder with --run-dir"
        raise ConfigError(f"{error.filename}: cannot make the run directory: {error.strerror}; {advice}") from error
    _ignore_in_git(path)
    return path, number


def describe(plan: RunPlan, run: RunDirectory, given_checkpoint: str | None) -> ClusterInfo:
    """Describe the run of ``plan`` for its ranks, as one node with ``plan.slots`` slots.

    Args:
        plan: the run's plan.
        run: its directory.
        given_checkpoint: where to start while the run has no checkpoint yet; an absolute path or a URL.
    """
    assigned = plan.assignment
    checkpoints, storage = checkpoint_places(run, plan.storage)
    return ClusterInfo(
        trial=TrialInfo(
            trial_id=run.number if assigned is None else assigned.trial,
            experiment_id=run.number if assigned is None else assigned.experiment,
            trial_seed=run.seed,
            hparams=masked_hparams(plan.hparams),
            _config=plan.document,
            _debug=plan.debug,
        ),
        run=RunInfo(
            directory=str(run.path),
            checkpoint_directory=str(checkpoints),
            storage=storage,
            fit=plan.fit,
            searcher_metric=plan.searcher_metric,
            smaller_is_better=plan.smaller_is_better,
            # A trial of a search may be promoted as long as the search lasts, which removes checkpoints at its end.
            save_trial_best=None if assigned else plan.storage.save_only_trial_best,
            save_trial_latest=None if assigned else plan.storage.save_trial_latest,
            aggregation_frequency=plan.aggregation_frequency,
            average_aggregated_gradients=plan.average_aggregated_gradients,
            precision=plan.precision,
            name=plan.name,
            log_with=list(plan.log_with),
            launch_layer=plan.entrypoint.layer,
        ),
        slot_ids=list(range(plan.slots)),
        container_slot_counts=[plan.slots],
        task_id=run.id,
        allocation_id=run.id,
        latest_checkpoint=newest_checkpoint(checkpoints) or given_checkpoint,
    )


def checkpoint_places(run: RunDirectory, storage: CheckpointStorage) -> tuple[Path, str | None]:
    """Return the folder of a run's checkpoints, and the URL where they are kept too; None: nowhere."""
    own = f"{run.path.name}-{run.id}"
    folder = run.path / "checkpoints" if storage.root is None else storage.root / own
    return folder, None if storage.remote is None else storage.remote.below(own).url


def make_checkpoint_directory(info: ClusterInfo) -> None:
    """Make the folder for checkpoints now, so that a wrong path is known before training and not after.

    Raises:
        ConfigError: it cannot be made.
    """
    path = Path(info.run.checkpoint_directory)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"checkpoint_storage: cannot make {path} ({error.strerror}); "
            f"name another folder with --config checkpoint_storage.host_path=PATH"
        ) from error


def lock(path: Path) -> IO[str]:
    """Hold the run directory for this process until the returned file is closed or the process ends.

    Raises:
        ConfigError: another process holds it.
    """
    held = (path / "lock").open("a+", encoding="utf-8")
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        held.seek(0)
        raise ConfigError(f"{path}: the process {held.read().strip() or '?'} is training there") from error
    held.seek(0)
    held.truncate()
    held.write(str(os.getpid()))
    held.flush()
    return held


def newest_directory(name: str) -> Path | None:
    """Return the newest run or search of the name below ``runs/``; None without any."""
    pattern = re.compile(re.escape(_folder_name(name)) + r"-(\d+)")
    found = (
        (int(match[1]), path)
        for path in DEFAULT_BASE.glob("*")
        if (match := pattern.fullmatch(path.name)) is not None and not path.is_symlink()  # --run-dir may name a link
    )
    sound = [(n, path) for n, path in found if (path / RUN_FILE).is_file() or (path / "search.json").is_file()]
    return max(sound)[1] if sound else None


def _folder_name(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "run"


def _new(base: Path, name: str) -> tuple[Path, int]:
    made = not base.exists()
    base.mkdir(parents=True, exist_ok=True)
    if made:
        _ignore_in_git(base)
    pattern = re.compile(re.escape(name) + r"-(\d+)")
    number = max((int(found[1]) for entry in base.iterdir() if (found := pattern.fullmatch(entry.name))), default=0)
    while True:
        number += 1
        try:
            (base / f"{name}-{number}").mkdir()
        except FileExistsError:  # another run of the same name came first
            continue
        return base / f"{name}-{number}", number


def _ignore_in_git(folder: Path) -> None:
    """Keep checkpoints and the code copied into them out of git."""
    (folder / ".gitignore").write_text("*\n", encoding="utf-8")


def read_directory(path: Path) -> RunDirectory:
    """Return the run in a directory, to continue it.

    Raises:
        ConfigError: it holds none, or links.
    """
    refuse_links(path)
    try:
        fields = read_record(path)
        run = RunDirectory(path, str(fields["id"]), fields["number"], fields["seed"], str(fields["status"]))
        if not _ID.fullmatch(run.id) or type(run.number) is not int or type(run.seed) is not int:
            raise ValueError(f"its id, number and seed are {run.id!r:.80}, {run.number!r:.80} and {run.seed!r:.80}")
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"{path / RUN_FILE}: cannot be read ({error!r}); use another --run-dir") from error
    return run


def refuse_links(path: Path) -> None:
    """Refuse to continue a run or search in a directory that holds links: files are written there, and they may come
    with a project from somebody else.

    Raises:
        ConfigError: it does; the message names the first one.
    """
    written = [path, *(path / name for name in ("log", "tensorboard", "trials"))]
    link = next((entry for folder in written for entry in sorted(folder.glob("*")) if entry.is_symlink()), None)
    if link is not None:
        raise ConfigError(
            f"{link}: is a link to {link.readlink()}, which ds-train would write to; remove it, or use another "
            "--run-dir (checkpoints on another disk: checkpoint_storage.host_path)"
        )
