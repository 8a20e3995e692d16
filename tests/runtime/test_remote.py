# ruff: noqa: ARG002 - trials and callbacks have the signatures they have
"""Checkpoints in a remote storage. Here it is a folder that fsspec's driver for files writes, in its own process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
import toys
from distributed import run_ranks
from ds_migrate.redaction import MASK
from forked_python import forked_python
from trial_runtime import export, pytorch
from trial_runtime._redaction import masked_text, masked_words
from trial_runtime._storage import remote
from trial_runtime._storage.remote import Location
from trial_runtime.errors import CheckpointNotFound, CheckpointStorageError
from trial_runtime.pytorch import deepspeed as det_ds
from trial_runtime.pytorch._checkpoints.store import CheckpointStore


def fit(kind: type, folder: Path, url: str, hparams: dict[str, Any] | None = None, **arguments: Any) -> toys.Outcome:
    """``toys.fit`` with checkpoints at ``url`` too."""
    exp_conf = {"reproducibility": {"experiment_seed": toys.SEED}, "checkpoint_storage": url}
    recorder = pytorch.MetricsRecorder()
    package: Any = det_ds if issubclass(kind, det_ds.DeepSpeedTrial) else pytorch
    given = {"global_batch_size": 4 * toys.world_size(), **(hparams or {})}
    with package.init(hparams=given, exp_conf=exp_conf, run_dir=folder) as context:
        context.add_metrics_sink(recorder)
        context.set_enable_tensorboard_logging(False)
        trial = kind(context)
        package.Trainer(trial, context).fit(**{"checkpoint_policy": "none", **arguments})
        return toys.Outcome(recorder, trial)


@pytest.fixture(autouse=True)
def driver_is_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The storage's processes start without imports, as those of ranks do, which run_ranks starts."""
    monkeypatch.setattr("sys.executable", forked_python())


def batches(folder: Path) -> list[int]:
    return sorted(int(path.parent.name.split("-")[0]) for path in folder.glob("*/manifest.json"))


def test_every_checkpoint_is_uploaded_and_the_newest_stays_here(tmp_path: Path) -> None:
    there = tmp_path / "bucket"
    url = there.as_uri()
    periods: dict[str, Any] = {"max_length": pytorch.Batch(6), "checkpoint_period": pytorch.Batch(2)}
    whole = fit(toys.SimplePT, tmp_path / "run", url, **periods)
    assert batches(there) == [2, 4, 6]
    assert batches(tmp_path / "run" / "checkpoints") == [6]
    newest = (there / "latest").read_text().strip()
    here = tmp_path / "run" / "checkpoints" / newest
    files = {str(path.relative_to(here)): path.read_bytes() for path in here.rglob("*") if path.is_file()}
    assert files == {name: (there / newest / name).read_bytes() for name in files}
    assert len(files) > 3
    # On another machine: from the newest; and from an older one, by its URL.
    further: dict[str, Any] = {"max_length": pytorch.Batch(8), "latest_checkpoint": "latest"}
    there_after = fit(toys.SimplePT, tmp_path / "elsewhere", url, **further)
    here_after = fit(toys.SimplePT, tmp_path / "run", url, **further)
    assert toys.difference(there_after.state, here_after.state) == 0.0
    older = next(path.name for path in there.iterdir() if path.name.startswith("00000004-"))
    again = toys.fit(
        toys.SimplePT, {}, tmp_path / "again", max_length=pytorch.Batch(6), latest_checkpoint=f"{url}/{older}"
    )
    assert toys.difference(again.state, whole.state) == 0.0


def on_this_rank(folder: Path) -> list[int]:
    url = (folder / "bucket").as_uri()
    hparams = {"stage": 1}
    whole = toys.fit(toys.SimpleDS, hparams, folder / "whole", max_length=pytorch.Batch(6))
    fit(toys.SimpleDS, folder / "run", url, hparams, max_length=pytorch.Batch(3), validation_period=pytorch.Batch(99))
    torch.distributed.barrier()
    if torch.distributed.get_rank() == 0:
        shutil.rmtree(folder / "run")
    torch.distributed.barrier()
    rest = fit(toys.SimpleDS, folder / "run", url, hparams, max_length=pytorch.Batch(6), latest_checkpoint="latest")
    if rest.training:
        assert len(rest.training) == 3
        assert rest.training[0]["loss"] != whole.training[0]["loss"]
    with pytest.raises(CheckpointNotFound, match="no checkpoint 'other'"):
        fit(toys.SimpleDS, folder / "run", url, hparams, max_length=pytorch.Batch(6), latest_checkpoint="other")
    return batches(folder / "bucket")


def test_ranks_share_uploads_and_downloads(tmp_path: Path) -> None:
    assert run_ranks(on_this_rank, tmp_path) == [[3, 6], [3, 6]]


def goes_on_from(folder: Path, url: str) -> int:
    """The number of batches of the checkpoint that a run in the folder continues."""
    with pytorch.init(exp_conf={"checkpoint_storage": url}, run_dir=folder) as context:
        mirrored = CheckpointStore(folder / "checkpoints", context.distributed, Location(url))
        return int(mirrored.find("latest").name.split("-")[0])


@pytest.fixture(scope="module")
def trained_elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run directory that has checkpoints of 2 and 4 batches, and a storage with those and one of 6."""
    folder = tmp_path_factory.mktemp("far-ahead")
    run, url = folder / "run", (folder / "bucket").as_uri()
    fit(toys.SimplePT, run, url, max_length=pytorch.Batch(2))
    shutil.copytree(run, folder / "before")
    fit(toys.SimplePT, run, url, max_length=pytorch.Batch(4), latest_checkpoint="latest")
    shutil.copytree(folder / "before" / "checkpoints", run / "checkpoints", dirs_exist_ok=True)
    newest = max(run.glob("checkpoints/*/"), key=lambda path: path.name).name
    (run / "checkpoints" / "latest").write_text(newest)
    fit(toys.SimplePT, folder / "elsewhere", url, max_length=pytorch.Batch(6), latest_checkpoint="latest")
    return folder


@pytest.fixture
def far_ahead(trained_elsewhere: Path, tmp_path: Path) -> tuple[Path, str]:
    """A copy of that run directory, and the URL of a copy of that storage."""
    for name in ("run", "bucket"):
        shutil.copytree(trained_elsewhere / name, tmp_path / name)
    return tmp_path / "run", (tmp_path / "bucket").as_uri()


def test_a_run_that_was_resumed_elsewhere_resumes_from_there(far_ahead: tuple[Path, str]) -> None:
    assert goes_on_from(*far_ahead) == 6


def test_where_the_newest_was_removed_here_the_storages_counts_not_an_older_one(
    far_ahead: tuple[Path, str],
) -> None:
    run, url = far_ahead
    for path in (run / "checkpoints").glob("00000004-*"):
        shutil.rmtree(path)
    assert goes_on_from(run, url) == 6


def test_a_checkpoint_that_was_not_uploaded_yet_counts(far_ahead: tuple[Path, str], tmp_path: Path) -> None:
    for path in (tmp_path / "bucket").glob("0000000[46]-*"):
        shutil.rmtree(path)
    assert goes_on_from(*far_ahead) == 4


class Failing:
    """Uploads that fail while ``broken`` is there."""

    def __init__(self, broken: Path) -> None:
        self.broken, self.call = broken, remote.call

    def __call__(self, location: Location, action: str, **arguments: Any) -> Any:
        if action == "put" and self.broken.exists():
            raise CheckpointStorageError(f"{location.url}: the network is down")
        return self.call(location, action, **arguments)


def test_what_could_not_be_uploaded_is_uploaded_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken = tmp_path / "broken"
    broken.touch()
    monkeypatch.setattr(remote, "call", Failing(broken))

    class Repairing(toys.SimplePT):
        def build_callbacks(self) -> Any:
            class Repair(pytorch.PyTorchCallback):
                def on_checkpoint_upload_end(self, uuid: str) -> None:
                    broken.unlink(missing_ok=True)

            return {"repair": Repair()}

    periods: dict[str, Any] = {"max_length": pytorch.Batch(4), "checkpoint_period": pytorch.Batch(2)}
    fit(Repairing, tmp_path / "run", (tmp_path / "bucket").as_uri(), **periods)
    assert batches(tmp_path / "bucket") == [2, 4]
    assert "was not uploaded" in caplog.text


def test_a_run_that_could_not_upload_ends_with_an_error_and_a_repeat_uploads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, url = tmp_path / "broken", (tmp_path / "bucket").as_uri()
    broken.touch()
    monkeypatch.setattr(remote, "call", Failing(broken))
    with pytest.raises(CheckpointStorageError, match=r"network is down.*Not uploaded: 00000002-"):
        fit(toys.SimplePT, tmp_path / "run", url, max_length=pytorch.Batch(2))
    broken.unlink()
    assert batches(tmp_path / "run" / "checkpoints") == [2]
    fit(toys.SimplePT, tmp_path / "run", url, max_length=pytorch.Batch(2), latest_checkpoint="latest")
    assert batches(tmp_path / "bucket") == [2]


def test_an_upload_that_was_cut_off_counts_as_none(tmp_path: Path) -> None:
    url = (tmp_path / "bucket").as_uri()
    fit(toys.SimplePT, tmp_path / "run", url, max_length=pytorch.Batch(2))
    whole = (tmp_path / "bucket" / "latest").read_text().strip()
    shutil.copytree(tmp_path / "bucket" / whole, tmp_path / "bucket" / "00000009-aaaaaaaa")
    (tmp_path / "bucket" / "00000009-aaaaaaaa" / "manifest.json").unlink()
    (tmp_path / "bucket" / "latest").write_text("")  # as a killed writer of files would leave it
    assert remote.call(Location(url), "latest") == whole


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("s3://bucket/x", "pip install s3fs"),
        ("gs://bucket", "pip install gcsfs"),
        ("az://container", "pip install adlfs"),
        ("nonsense://x", "no storage of the kind nonsense://"),
        ("memory://x", "own memory"),
        ("simplecache::nonsense://x", "nonsense"),
    ],
)
def test_a_storage_without_a_driver_is_reported_before_training(url: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointStorageError, match=said):
        fit(toys.SimplePT, tmp_path, url, max_length=pytorch.Batch(1))
    assert not (tmp_path / "checkpoints").exists()


def test_errors_hold_no_keys(tmp_path: Path) -> None:
    location = Location("file:///nowhere", {"auto_mkdir": "topsecret"})
    assert "topsecret" not in repr(location)
    with pytest.raises(CheckpointStorageError) as error:
        remote.call(location, "put", name="x", folder=str(tmp_path), files=["topsecret"])
    assert "***" in str(error.value)
    assert "topsecret" not in str(error.value)


def test_a_trial_and_its_weights_come_from_a_url(tmp_path: Path) -> None:
    url = (tmp_path / "bucket").as_uri()
    state = fit(toys.SimpleDS, tmp_path / "run", url, {"stage": 1}, max_length=pytorch.Batch(2)).state
    trial = pytorch.load_trial_from_checkpoint_path(url, toys.SimpleDS)
    assert toys.difference(trial.state(), state) == 0.0
    assert export.main([url, str(tmp_path / "weights.safetensors")]) == 0
    assert (tmp_path / "weights.safetensors").is_file()


# ds-train


CONFIG = """\
name: remote  # a name
entrypoint: model_def:Trial
hyperparameters: {{global_batch_size: 4}}
searcher: {{name: single, metric: validation_loss, max_length: {{batches: {length}}}}}
min_checkpoint_period: {{batches: 2}}
checkpoint_policy: none
reproducibility: {{experiment_seed: 3}}
checkpoint_storage:
  type: url
  url: {url}
  options: {{auto_mkdir: true, extra: topsecret}}
  save_trial_best: 0
  save_trial_latest: 2
"""


def ds_train(folder: Path, *options: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(toys.__file__).parent)}
    command = [forked_python(), "-m", "trial_runtime.train", "const.yaml", *map(str, options)]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=200)


def test_ds_train_keeps_checkpoints_there_and_keys_nowhere(tmp_path: Path) -> None:
    (tmp_path / "model_def.py").write_text("import toys\nclass Trial(toys.SimplePT):\n    pass\n")
    url = (tmp_path / "bucket").as_uri()
    (tmp_path / "const.yaml").write_text(CONFIG.format(url=url, length=6))
    done = ds_train(tmp_path, "--run-dir", "run")
    assert done.returncode == 0, done.stderr
    (own,) = (tmp_path / "bucket").iterdir()
    assert own.name.startswith("run-")
    assert batches(own) == [4, 6]  # retention is there too
    for path in (tmp_path / "run").rglob("*"):
        assert not path.is_file() or b"topsecret" not in path.read_bytes(), path
    assert "topsecret" not in done.stdout + done.stderr
    kept = (tmp_path / "run" / "config.yaml").read_text()
    assert "# a name" in kept
    assert MASK in kept
    # The run directory's checkpoints are lost; the run goes on from the storage.
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    (tmp_path / "const.yaml").write_text(CONFIG.format(url=url, length=8))
    done = ds_train(tmp_path, "--run-dir", "run")
    assert done.returncode == 0, done.stderr
    assert batches(own) == [6, 8]
    # It went on elsewhere: here an older one is left.
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    shutil.copytree(next(own.glob("00000006-*")), tmp_path / "run" / "checkpoints" / next(own.glob("00000006-*")).name)
    done = ds_train(tmp_path, "--run-dir", "run")
    assert done.returncode == 0, done.stderr
    assert batches(own) == [6, 8]
    # A new run starts from a checkpoint there.
    done = ds_train(tmp_path, "--latest-checkpoint", f"{url}/{own.name}", "--config", "checkpoint_storage=null")
    assert done.returncode == 0, done.stderr
    reports = [json.loads(line) for line in (tmp_path / "runs" / "remote-1" / "metrics.jsonl").read_text().splitlines()]
    assert all(report["steps_completed"] >= 8 for report in reports)


def test_a_storage_that_cannot_be_reached_is_reported_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "model_def.py").write_text("raise SystemExit('started')\n")
    (tmp_path / "const.yaml").write_text(CONFIG.format(url="s3://bucket", length=2))
    done = ds_train(tmp_path)
    assert done.returncode == 2
    assert "checkpoint_storage: s3://bucket/remote-1-" in done.stderr
    assert "s3:// needs a driver: pip install s3fs" in done.stderr


def test_keys_are_masked_in_files_and_command_lines() -> None:
    document = {"checkpoint_storage": {"type": "s3", "bucket": "b", "access_key": "abc", "secret_key": "p w: #"}}
    text = 'checkpoint_storage:  # there\n  {type: s3, bucket: b, access_key: abc, secret_key: "p w: #"}\n'
    masked = masked_text(text, document)
    assert masked == text.replace("abc", MASK).replace("p w: #", MASK)
    escaped = text.replace("p w", "p\\x20w")
    assert "x20" not in masked_text(escaped, document)
    assert "bucket: b" in masked_text(escaped, document)
    assert masked_text("name: x  # c\n", {"name": "x"}) == "name: x  # c\n"
    login = {"environment": {"registry_auth": {"username": "me", "password": "abc"}}}
    text = "environment: {registry_auth: {username: me, password: abc}}  # ours\n"
    assert masked_text(text, login) == text.replace("abc", MASK)
    assert masked_words(["--config", "environment.registry_auth.password=s"])[1].endswith(f"password={MASK}")
    words = ["c.yaml", "--config", "checkpoint_storage.secret_key=s", "--config=checkpoint_storage.options.t=s", "a=b"]
    assert masked_words(words) == [
        "c.yaml",
        "--config",
        f"checkpoint_storage.secret_key={MASK}",
        f"--config=checkpoint_storage.options.t={MASK}",
        "a=b",
    ]
