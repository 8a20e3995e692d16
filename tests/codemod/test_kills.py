"""Runs that are killed at any moment while they write: the next run ends where an undisturbed one ends."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import examples
import pytest
from ds_migrate import pipeline
from ds_migrate.cli import main

CONFIG = """\
name: killed  # kept
entrypoint: model_def:MyTrial
hyperparameters:
  global_batch_size: 8
optimizations:
  aggregation_frequency: 2
searcher:
  name: single
  metric: validation_loss
  max_length:
    batches: 100
"""
BASE = """\
from determined.pytorch import DataLoader, PyTorchTrial


class Base(PyTorchTrial):
    def build_training_data_loader(self):
        return DataLoader([1], batch_size=self.context.get_per_slot_batch_size())
"""
STOPPED = "Killed"
DS_CONFIG = "ds_config.json"


class KilledError(BaseException):
    """What stands for the end of the process: nothing catches it but tests."""


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project of two conversions over six files."""
    root = tmp_path_factory.mktemp("original")
    for name in ("one", "two"):
        folder = root / name
        folder.mkdir()
        source = examples.module().replace("class MyTrial(PyTorchTrial)", "class MyTrial(Base)")
        (folder / "model_def.py").write_text(
            source.replace("import torch\n", "import torch\nfrom base import Base\n", 1)
        )
        (folder / "base.py").write_text(BASE)
        (folder / "const.yaml").write_text(CONFIG)
    return root


def tree(root: Path) -> dict[str, bytes]:
    """Every file but those of the journal."""
    files = (path for path in root.rglob("*") if path.is_file())
    return {str(p.relative_to(root)): p.read_bytes() for p in files if ".ds-migrate" not in p.relative_to(root).parts}


def copy_of(original: Path, folder: Path) -> Path:
    return Path(shutil.copytree(original, folder))


@pytest.fixture(scope="module")
def undisturbed(original: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What an undisturbed run leaves."""
    root = copy_of(original, tmp_path_factory.mktemp("undisturbed") / "project")
    run("--write", root)
    after = tree(root)
    assert len(after) == 8
    assert DS_CONFIG.encode() in after["one/const.yaml"]
    return after


@pytest.fixture
def converted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convert files of the same content once: these tests are about what is written, again and again."""
    reports: dict[object, bytes] = {}
    convert = pipeline.migrate

    def remembered(*arguments: Any, **keywords: Any) -> Any:
        files = {name: data for name, data in tree(Path.cwd()).items() if not name.endswith(".tmp")}
        project = (Path.cwd(), frozenset(files.items()))
        if project not in reports:
            reports[project] = pickle.dumps(convert(*arguments, **keywords))
        return pickle.loads(reports[project])

    monkeypatch.setattr(pipeline, "migrate", remembered)


def run(option: str, root: Path) -> int:
    """Run the command line in the project."""
    here = Path.cwd()
    os.chdir(root)
    try:
        return main([option, *(["."] if option != "--undo" else [])])
    finally:
        os.chdir(here)


# The calls that change a disk; half: what was written may be there in part only.
CALLS = ("open", "fsync", "replace", "rename", "link", "unlink", "mkdir", "rmdir")


def descriptors() -> set[int]:
    """The open files of this process."""
    found = set()
    for descriptor in range(256):
        try:
            os.fstat(descriptor)
        except OSError:
            continue
        found.add(descriptor)
    return found


@contextmanager
def killed_at(number: int, moment: str) -> Iterator[list[str]]:
    """End the block at the given call that changes the disk, before it, after it, or with half of the data written.

    From then on nothing changes the disk any more, as if the process were gone. Yields the names of the calls so far.
    """
    calls: list[str] = []
    real = {name: getattr(os, name) for name in CALLS}
    opened = descriptors()

    def patched(name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            if name == "open" and not arguments[1] & os.O_CREAT:
                return real[name](*arguments, **keywords)
            if calls[-1:] == [STOPPED]:
                raise KilledError
            calls.append(name)
            if len(calls) - 1 != number:
                return real[name](*arguments, **keywords)
            calls.append(STOPPED)
            if moment == "half" and name == "fsync":
                os.ftruncate(arguments[0], os.fstat(arguments[0]).st_size // 2)
            elif moment == "after":
                real[name](*arguments, **keywords)
            raise KilledError

        return call

    try:
        for name in CALLS:
            setattr(os, name, patched(name))
        yield calls
    except KilledError:
        for descriptor in descriptors() - opened:
            os.close(descriptor)  # locks end with a process
    finally:
        for name, function in real.items():
            setattr(os, name, function)


def number_of_calls(option: str, root: Path) -> list[str]:
    with killed_at(-1, "before") as calls:
        run(option, root)
    return calls


def moments(calls: list[str]) -> Iterator[tuple[int, str]]:
    """Yield every moment to be killed at."""
    for number, name in enumerate(calls):
        yield number, "after"
        if number == 0:
            yield number, "before"  # of any later call: after the one before it
        if name == "fsync":
            yield number, "half"


@pytest.mark.usefixtures("converted_once")
def test_after_a_kill_anywhere_in_a_write_the_next_write_ends_as_an_undisturbed_one(
    original: Path, undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    calls = number_of_calls("--write", copy_of(original, tmp_path / "count"))
    assert len(calls) > 40
    for number, moment in moments(calls):
        root = copy_of(original, tmp_path / "project")
        with killed_at(number, moment) as made:
            run("--write", root)
        assert made[-1] == STOPPED
        run("--write", root)
        assert tree(root) == undisturbed, f"killed {moment} call {number}, {calls[number]}"
        run("--undo", root)
        shutil.rmtree(root)


@pytest.mark.usefixtures("converted_once")
def test_after_a_kill_anywhere_in_a_write_an_undo_restores_every_file(
    original: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = number_of_calls("--write", copy_of(original, tmp_path / "count"))
    before = tree(original)
    for number, moment in moments(calls):
        root = copy_of(original, tmp_path / "project")
        with killed_at(number, moment):
            run("--write", root)
        code = run("--undo", root)
        left = {name: data for name, data in tree(root).items() if not name.endswith(".tmp")}
        assert left == before, f"killed {moment} call {number}, {calls[number]}"
        assert code == 0 or "nothing to undo" in capsys.readouterr().err
        shutil.rmtree(root)


@pytest.mark.usefixtures("converted_once")
@pytest.mark.parametrize("option", ["--undo", "--write"])
def test_a_kill_anywhere_in_an_undo_loses_nothing(
    option: str, original: Path, undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    written = copy_of(original, tmp_path / "written")
    run("--write", written)
    calls = number_of_calls("--undo", placed(written, tmp_path / "project"))
    for number, moment in moments(calls):
        root = placed(written, tmp_path / "project")
        with killed_at(number, moment):
            run("--undo", root)
        run(option, root)
        left = {name: data for name, data in tree(root).items() if not name.endswith(".tmp")}
        expected = undisturbed if option == "--write" else tree(original)
        assert left == expected, f"killed {moment} call {number}, {calls[number]}"


def placed(written: Path, root: Path) -> Path:
    """Return a project that was converted where it is: the journal holds absolute paths."""
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(written, root)
    for entry in (root / ".ds-migrate/journal").iterdir():
        entry.write_text(entry.read_text().replace(str(written), str(root)))
    return root


KILLER = textwrap.dedent("""\
    import os, signal, sys
    from ds_migrate.cli import main

    count, name = int(sys.argv[1]), sys.argv[2]
    real = getattr(os, name)

    def call(*arguments, **keywords):
        global count
        count -= 1
        if count < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **keywords)

    setattr(os, name, call)
    main(["--write", "."])
    """)


@pytest.mark.parametrize(("name", "count"), [("fsync", 1), ("link", 1), ("replace", 0), ("replace", 2), ("replace", 6)])
def test_a_process_that_is_really_killed_is_recovered_from(
    name: str, count: int, original: Path, undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    root = copy_of(original, tmp_path / "project")
    command = [sys.executable, "-c", KILLER, str(count), name]
    done = subprocess.run(command, cwd=root, capture_output=True, check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    run("--write", root)
    assert tree(root) == undisturbed
    run("--undo", root)
    assert tree(root) == tree(original)
    assert not (root / ".ds-migrate").exists()


def half_written(original: Path, root: Path) -> Path:
    """A project whose conversion was killed at the third rename."""
    calls = number_of_calls("--write", copy_of(original, root.with_name("count")))
    renames = [number for number, name in enumerate(calls) if name == "replace"]
    copy_of(original, root)
    with killed_at(renames[2], "after"):
        run("--write", root)
    assert tree(root) != tree(original)
    return root


@pytest.mark.parametrize("option", ["--diff", "--check"])
def test_half_a_conversion_is_reported_with_the_ways_out(
    option: str, original: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = half_written(original, tmp_path / "project")
    before = tree(root)
    capsys.readouterr()
    assert run(option, root) == 2
    shown = capsys.readouterr()
    assert "DSM004" in shown.out + shown.err
    assert "was ended while it wrote" in shown.out + shown.err
    assert "ds-migrate --write restores its files and converts them again" in shown.out + shown.err
    assert tree(root) == before


def test_work_done_since_a_kill_is_not_written_over(
    original: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = half_written(original, tmp_path / "project")
    now = tree(root)
    edited = next(name for name, data in sorted(tree(original).items()) if now[name] != data)
    (root / edited).write_bytes(b"work of a day\n")
    before = tree(root)
    capsys.readouterr()
    assert run("--write", root) == 2
    assert tree(root) == before
    error = capsys.readouterr().err
    assert f"{edited} changed since" in error
    assert "000001.json to keep them" in error


def test_a_run_that_is_still_writing_is_left_alone(original: Path, tmp_path: Path) -> None:
    root = copy_of(original, tmp_path / "project")
    calls = number_of_calls("--write", copy_of(original, tmp_path / "count"))
    renames = [number for number, name in enumerate(calls) if name == "replace"]
    command = [sys.executable, "-c", KILLER.replace("SIGKILL", "SIGSTOP"), "3", "replace"]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as writer:
        try:
            os.waitpid(writer.pid, os.WUNTRACED)
            written = tree(root)
            assert renames and written != tree(original)
            run("--check", root)
            run("--write", root / "one")
            changed = {name for name, data in tree(root).items() if written.get(name) != data}
            assert not any(written.get(name) not in (None, tree(original).get(name)) for name in changed)
        finally:
            writer.kill()


def test_a_temporary_file_of_a_killed_run_is_removed_and_others_stay(original: Path, tmp_path: Path) -> None:
    root = copy_of(original, tmp_path / "project")
    folder = root / "one"
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    mine = folder / ".ds-migrate-notes.tmp"
    mine.write_text("mine")
    (folder / f".ds-migrate-{dead.pid}-0123456789abcdef.tmp").write_text("left")
    (folder / f".ds-migrate-{os.getppid()}-0123456789abcdef.tmp").write_text("at work")
    run("--write", root)
    assert sorted(path.name for path in folder.glob(".ds-migrate-*")) == [
        f".ds-migrate-{os.getppid()}-0123456789abcdef.tmp",
        mine.name,
    ]


# -- a DeepSpeed config that is gone ----------------------------------------------------------------------------------


def test_a_missing_config_is_found_and_made_again(
    original: Path, undisturbed: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = copy_of(original, tmp_path / "project")
    run("--write", root)
    (root / f"one/{DS_CONFIG}").unlink()
    capsys.readouterr()
    assert run("--check", root) == 1
    assert f"{DS_CONFIG} would be created" in capsys.readouterr().out
    assert run("--write", root) == 0
    assert tree(root) == undisturbed
    assert run("--check", root) == 0


def test_a_missing_config_that_nothing_remembers_is_an_error_with_the_way_out(
    original: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = copy_of(original, tmp_path / "project")
    run("--write", root)
    shutil.rmtree(root / ".ds-migrate")
    (root / f"one/{DS_CONFIG}").unlink()
    capsys.readouterr()
    assert run("--write", root) == 2
    shown = capsys.readouterr().out
    assert f"{DS_CONFIG} DSM508 error: MyTrial reads {DS_CONFIG}, which is not there" in shown
    assert "take it from version control, or convert the original source again" in shown
    assert not (root / f"one/{DS_CONFIG}").exists()


def test_a_config_that_is_somewhere_else_is_not_missed(
    original: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = copy_of(original, tmp_path / "project")
    run("--write", root)
    (root / f"one/{DS_CONFIG}").rename(root / "one/mine.json")
    config = root / "one/const.yaml"
    config.write_text(config.read_text().replace(DS_CONFIG, "mine.json"))
    capsys.readouterr()
    assert run("--check", root) == 0
    assert "DSM508" not in capsys.readouterr().out


def test_a_new_trial_does_not_give_its_config_to_one_that_misses_its_own(original: Path, tmp_path: Path) -> None:
    root = copy_of(original, tmp_path / "project")
    run("--write", root)
    kept = (root / f"one/{DS_CONFIG}").read_bytes()
    (root / f"one/{DS_CONFIG}").unlink()
    other = (
        examples.module()
        .replace("MyTrial", "OtherTrial")
        .replace(
            "step_optimizer(self.optimizer)",
            "step_optimizer(self.optimizer, clip_grads=lambda p: torch.nn.utils.clip_grad_norm_(p, 0.5))",
        )
    )
    (root / "one/other.py").write_text(other)
    assert run("--write", root) == 0
    assert (root / f"one/{DS_CONFIG}").read_bytes() == kept
