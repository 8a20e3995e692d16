# ruff: noqa: ARG002 - trials and callbacks have the signatures they have
"""No file of a checkpoint runs code, whichever way it is read; this user's own objects come back all the same."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import toys
from distributed import run_ranks
from forked_python import forked_python
from trial_runtime import export, pytorch
from trial_runtime._cluster_info import TRUST_VARIABLE
from trial_runtime.errors import InvalidCheckpointException, UntrustedCheckpointError
from trial_runtime.pytorch import deepspeed as det_ds
from trial_runtime.pytorch._checkpoints import restricted_load, signature
from trial_runtime.pytorch._data import worker_rng


class Bomb:
    """Object whose pickle creates a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return open, (str(self.file), "w")


def checkpoint_in(folder: Path) -> Path:
    return folder / "checkpoints" / (folder / "checkpoints" / "latest").read_text().strip()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A checkpoint of each kind."""
    folder = tmp_path_factory.mktemp("saved")
    found = {}
    for name, kind, hparams in (
        ("pytorch", toys.SimplePT, {}),
        ("stage 0", toys.SimpleDS, {"stage": 0}),
        ("stage 1", toys.SimpleDS, {"stage": 1}),
        ("stage 3", toys.SimpleDS, {"stage": 3}),
    ):
        toys.fit(kind, hparams, folder / name, max_length=pytorch.Batch(1))
        found[name] = checkpoint_in(folder / name)
    return found


def rewrite_manifest(checkpoint: Path) -> None:
    """Describe the files as they are now, as anybody can who has no key."""
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    manifest.pop("sha256")
    files = (path for path in checkpoint.rglob("*") if path.is_file() and path.name != "manifest.json")
    manifest["files"] = {
        str(path.relative_to(checkpoint)): {
            "size": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        for path in files
    }
    digest = hashlib.sha256(
        json.dumps({k: v for k, v in manifest.items() if k != "signature"}, sort_keys=True).encode()
    ).hexdigest()
    (checkpoint / "manifest.json").write_text(json.dumps({**manifest, "sha256": digest}))


def ways(checkpoint: Path, name: str, folder: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The ways in which the runtime reads a checkpoint."""
    kind = toys.SimplePT if name == "pytorch" else toys.SimpleDS
    hparams = {} if name == "pytorch" else {"stage": int(name[-1])}
    more: dict[str, Any] = {"max_length": pytorch.Batch(2), "latest_checkpoint": checkpoint}
    if name != "stage 3":  # each engine of it leaves gigabytes of address space behind
        yield "resume", lambda: toys.fit(kind, hparams, folder / "resumed", **more)
    yield "load", lambda: pytorch.load_trial_from_checkpoint_path(checkpoint, kind)
    yield "command", lambda: export.export(str(checkpoint), folder / "model.safetensors")
    if name == "pytorch":
        yield "warm start", lambda: toys.fit(toys.SimpleDS, {}, folder / "warm", **more)
    else:
        yield "consolidated", lambda: det_ds.consolidated_state_dict(checkpoint)


def plant_whole(file: Path, bomb: Bomb) -> None:
    torch.save(bomb, file)


def plant_inside(file: Path, bomb: Bomb) -> None:
    content = torch.load(file, weights_only=False)
    content["callbacks" if "rank" in file.name else "param_shapes"] = {"mine": bomb}
    torch.save(content, file)


def plant_old_format(file: Path, bomb: Bomb) -> None:
    torch.save({"module": bomb}, file, _use_new_zipfile_serialization=False)


def plant_bare(file: Path, bomb: Bomb) -> None:
    file.write_bytes(pickle.dumps(bomb))


@pytest.mark.parametrize("plant", [plant_whole, plant_inside, plant_old_format, plant_bare])
@pytest.mark.parametrize("name", ["pytorch", "stage 0", "stage 1", "stage 3"])
def test_no_file_of_a_checkpoint_runs_code(
    name: str, plant: Callable[[Path, Bomb], None], saved: dict[str, Path], tmp_path: Path
) -> None:
    files = [path.relative_to(saved[name]) for path in saved[name].rglob("*.pt*") if path.is_file()]
    assert len(files) > 1
    for number, file in enumerate(files):
        checkpoint = tmp_path / str(number) / saved[name].name
        shutil.copytree(saved[name], checkpoint)
        plant(checkpoint / file, Bomb(tmp_path / "ran"))
        rewrite_manifest(checkpoint)
        refused = 0
        for way, read in ways(checkpoint, name, tmp_path / str(number)):
            try:
                read()
            except InvalidCheckpointException as error:
                refused += 1
                assert "--trust-checkpoint" in str(error) or "cannot be read" in str(error), way
            assert not (tmp_path / "ran").exists(), (file, way)
        assert refused, file  # not every way reads every file


def test_code_that_hides_in_the_states_of_workers_does_not_run(tmp_path: Path) -> None:
    with pytest.raises(pickle.UnpicklingError, match=r"names (io|_io)\.open"):
        worker_rng._set(pickle.dumps(Bomb(tmp_path / "ran")))
    worker_rng._set(worker_rng._get())
    assert not (tmp_path / "ran").exists()


def test_a_checkpoint_that_passes_for_one_of_determined_runs_no_code(saved: dict[str, Path], tmp_path: Path) -> None:
    checkpoint = tmp_path / "copy"
    shutil.copytree(saved["pytorch"], checkpoint)
    (checkpoint / "manifest.json").unlink()
    (checkpoint / "trial_state.pkl").write_bytes(pickle.dumps(Bomb(tmp_path / "ran")))
    with pytest.raises(InvalidCheckpointException, match=r"trial_state\.pkl names (io|_io)\.open"):
        toys.fit(toys.SimplePT, {}, tmp_path, max_length=pytorch.Batch(2), latest_checkpoint=checkpoint)
    torch.save({"callbacks": Bomb(tmp_path / "ran")}, checkpoint / "state_dict.pth")
    (checkpoint / "trial_state.pkl").unlink()
    (checkpoint / "metadata.json").write_text("{}")
    with pytest.raises(UntrustedCheckpointError, match=r"it holds _?io\.open"):
        toys.fit(toys.SimplePT, {}, tmp_path, max_length=pytorch.Batch(2), latest_checkpoint=checkpoint)
    assert not (tmp_path / "ran").exists()


def test_a_file_that_was_added_is_refused(saved: dict[str, Path], tmp_path: Path) -> None:
    checkpoint = tmp_path / "copy"
    shutil.copytree(saved["stage 1"], checkpoint)
    torch.save(Bomb(tmp_path / "ran"), checkpoint / "model0" / "zero_pp_rank_1_mp_rank_00_optim_states.pt")
    with pytest.raises(InvalidCheckpointException, match=r"zero_pp_rank_1.*: not one of the files that were saved"):
        toys.fit(toys.SimpleDS, {}, tmp_path, max_length=pytorch.Batch(2), latest_checkpoint=checkpoint)
    with pytest.raises(InvalidCheckpointException):
        det_ds.consolidated_state_dict(checkpoint)
    assert not (tmp_path / "ran").exists()


def refused_on_rank(checkpoint: Path, folder: Path) -> str:
    with pytest.raises(UntrustedCheckpointError) as error:
        toys.fit(toys.SimpleDS, {"stage": 1}, folder, max_length=pytorch.Batch(2), latest_checkpoint=checkpoint)
    return str(error.value)


def save_on_rank(folder: Path) -> None:
    toys.fit(toys.SimpleDS, {"stage": 1}, folder, max_length=pytorch.Batch(1))


def test_a_shard_of_one_rank_is_refused_on_all(tmp_path: Path) -> None:
    run_ranks(save_on_rank, tmp_path)
    checkpoint = checkpoint_in(tmp_path)
    plant_whole(checkpoint / "rank_1.pt", Bomb(tmp_path / "ran"))
    rewrite_manifest(checkpoint)
    first, second = run_ranks(refused_on_rank, checkpoint, tmp_path / "resumed")
    assert first == second
    assert "rank_1.pt: it holds io.open" in first.replace("_io", "io")
    assert not (tmp_path / "ran").exists()


class Memory:
    """An object of the trial's own."""

    def __init__(self, seen: int) -> None:
        self.seen = seen


class Remembering(pytorch.PyTorchCallback):
    seen = 0

    def __init__(self) -> None:
        self.memory = Memory(0)

    def on_training_workload_end(self, avg_metrics: Any, batch_metrics: Any) -> None:
        self.memory = Memory(self.memory.seen + 1)
        Remembering.seen = self.memory.seen

    def state_dict(self) -> dict[str, Any]:
        return {"memory": self.memory}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.memory = state_dict["memory"]


class WithMemory(toys.SimplePT):
    def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
        return {"memory": Remembering()}


def resumed(checkpoint: Path, folder: Path) -> int:
    toys.fit(WithMemory, {}, folder, max_length=pytorch.Batch(2), latest_checkpoint=checkpoint)
    return Remembering.seen


def test_objects_of_a_trial_come_back_from_the_users_own_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    toys.fit(WithMemory, {}, tmp_path, max_length=pytorch.Batch(1))
    checkpoint = checkpoint_in(tmp_path)
    assert signature.key_file().stat().st_mode & 0o777 == 0o600
    assert resumed(checkpoint, tmp_path / "own") == 2
    pytorch.load_trial_from_checkpoint_path(checkpoint, WithMemory)

    manifest = (checkpoint / "manifest.json").read_text()
    rewrite_manifest(checkpoint)  # another's signature: this user's no longer fits
    for read in (
        lambda: resumed(checkpoint, tmp_path / "other"),
        lambda: export.export(str(checkpoint), tmp_path / "w"),
    ):
        (checkpoint / "manifest.json").write_text(manifest)
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "of somebody else"))
        with pytest.raises(UntrustedCheckpointError, match=r"it holds test_trust\.Memory"):
            read()
        monkeypatch.setenv(TRUST_VARIABLE, "1")
        read()
        monkeypatch.delenv(TRUST_VARIABLE)


@pytest.mark.parametrize("how", ["readable by all", "too short"])
def test_a_key_that_is_no_secret_signs_nothing(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    signed = signature.sign("digest")
    assert signature.is_valid("digest", signed)
    assert not signature.is_valid("another", signed)
    assert not any(signature.is_valid("digest", other) for other in (None, 1, "", "é", "0" * 64))
    if how == "too short":
        signature.key_file().write_bytes(b"")
    else:
        signature.key_file().chmod(0o644)
    assert signature.sign("digest") is None
    assert not signature.is_valid("digest", signed)


def test_without_a_place_for_the_key_checkpoints_are_plain_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null")
    toys.fit(toys.SimpleDS, {"stage": 1}, tmp_path, max_length=pytorch.Batch(1))
    assert "signature" not in json.loads((checkpoint_in(tmp_path) / "manifest.json").read_text())
    toys.fit(toys.SimpleDS, {"stage": 1}, tmp_path, max_length=pytorch.Batch(2), latest_checkpoint="latest")


TRIAL = "import test_trust\nclass Trial(test_trust.WithMemory):\n    pass\n"
CONFIG = "{name: trust, entrypoint: 'model_def:Trial', searcher: {max_length: 2, metric: validation_loss}}\n"


class _ByName:
    """Pickles as Python before 3.11.4 pickles a member of an enumeration."""

    def __init__(self, kind: type, name: str) -> None:
        self._kind, self._name = kind, name

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[type, str]]:
        return getattr, (self._kind, self._name)


def test_members_of_enumerations_are_data_under_any_python(tmp_path: Path) -> None:
    from deepspeed.runtime.zero.config import ZeroStageEnum

    torch.save({"stage": _ByName(ZeroStageEnum, "weights")}, tmp_path / "a.pt")
    assert restricted_load.read(tmp_path / "a.pt") == {"stage": ZeroStageEnum.weights}


@pytest.mark.parametrize("name", ["__init_subclass__", "mro", "_member_map_"])
def test_nothing_else_is_reached_by_name(name: str, tmp_path: Path) -> None:
    from deepspeed.runtime.zero.config import ZeroStageEnum

    torch.save(_ByName(ZeroStageEnum, name), tmp_path / "a.pt")
    with pytest.raises(UntrustedCheckpointError, match="it holds getattr"):
        restricted_load.read(tmp_path / "a.pt")


def test_the_commands_refuse_it_and_take_it_when_asked_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toys.fit(WithMemory, {}, tmp_path, max_length=pytorch.Batch(1))
    checkpoint = checkpoint_in(tmp_path)
    (tmp_path / "model_def.py").write_text(TRIAL)
    (tmp_path / "c.yaml").write_text(CONFIG)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, Path(toys.__file__).parents[:2]))}
    for more, code in (([], 2), (["--trust-checkpoint"], 0)):
        command = ["-m", "trial_runtime.train", "c.yaml", "--latest-checkpoint", str(checkpoint), *more]
        done = subprocess.run(
            [forked_python(), *command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200
        )
        assert done.returncode == code, done.stderr
        assert ("repeat with --trust-checkpoint" in done.stderr) == (code == 2)
    monkeypatch.delenv(TRUST_VARIABLE, raising=False)
    assert export.main([str(checkpoint), str(tmp_path / "model.pt")]) == 2
    assert export.main([str(checkpoint), str(tmp_path / "model.pt"), "--trust-checkpoint"]) == 0


def test_code_of_a_checkpoint_is_imported_when_this_user_saved_it(tmp_path: Path) -> None:
    toys.fit(toys.SimplePT, {}, tmp_path, max_length=pytorch.Batch(1))
    checkpoint = checkpoint_in(tmp_path)
    pytorch.load_trial_from_checkpoint_path(checkpoint)
    (checkpoint / "code" / "sitecustomize.py").touch()
    with pytest.raises(UntrustedCheckpointError, match=r"was not imported.*trust_checkpoint=True"):
        pytorch.load_trial_from_checkpoint_path(checkpoint)
    pytorch.load_trial_from_checkpoint_path(checkpoint, toys.SimplePT)
    pytorch.load_trial_from_checkpoint_path(checkpoint, trust_checkpoint=True)
    assert TRUST_VARIABLE not in os.environ or os.environ[TRUST_VARIABLE] != "1"
