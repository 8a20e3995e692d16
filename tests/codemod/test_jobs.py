"""Work on several processes: the same answers, and what becomes of a process that dies or is to stop."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import examples
import pytest
from ds_migrate import pipeline
from ds_migrate.cli import main
from ds_migrate.conversion import processes, unit
from ds_migrate.conversion.worker_pool import _PAYS
from ds_migrate.files.discovery import discover
from ds_migrate.findings import Report, TrialStatus
from ds_migrate.options import Options
from ds_migrate.trial.model import Trial

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="only Linux shares work out")
HERE = os.getpid()
TEXT = (str.encode, bytes.decode)


class Barrier:
    """Holds this process up until every fork of it has ended."""

    def __init__(self) -> None:
        self._reads, self._writes = os.pipe()

    def wait(self) -> None:
        os.close(self._writes)
        assert os.read(self._reads, 1) == b""  # the last one that could write is gone
        os.close(self._reads)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Six folders, each with a trial and its experiment config; one file does not parse."""
    for number in range(6):
        folder = tmp_path / f"folder_{number}"
        folder.mkdir()
        source = examples.module().replace("MyTrial", f"Trial{number}")
        (folder / "model_def.py").write_text(source if number != 2 else source.replace("loss", "lo ss"))
        (folder / "const.yaml").write_text(f"entrypoint: model_def:Trial{number}\nsearcher: {{name: single}}\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def report(tree: Path, jobs: int | None) -> Report:
    return pipeline.migrate(discover([tree]), Options(), jobs=jobs)


@pytest.mark.usefixtures("tree")
@pytest.mark.parametrize("form", ["text", "json", "sarif", "github"])
def test_the_output_is_the_same_whoever_converts(form: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    outputs = []
    for jobs in ("1", "2", "3", "40"):
        code = main([".", "--format", form, "--jobs", jobs])
        outputs.append((code, *capfdbinary.readouterr()))
    assert outputs[0][1] and outputs == [outputs[0]] * 4


def test_a_fault_in_another_process_is_its_trials_error_as_in_this_one(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = unit.decide

    def faulty(trial: Trial, *rest: Any) -> object:
        if trial.name == "Trial3":
            raise AssertionError("a case nobody thought of")
        return right(trial, *rest)

    monkeypatch.setattr(unit, "decide", faulty)
    alone = report(tree, 1)
    assert [t.name for _, t in alone.trials(TrialStatus.BLOCKED)] == ["Trial3"]
    assert report(tree, 3) == alone


def test_a_process_that_dies_takes_one_folder_with_it(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = unit.decide
    others = Barrier()
    waited = []

    def deadly(trial: Trial, *rest: Any) -> object:
        if os.getpid() != HERE:
            os.kill(os.getpid(), signal.SIGKILL)
        if not waited:
            waited.append(trial)
            others.wait()
        return right(trial, *rest)

    monkeypatch.setattr(unit, "decide", deadly)
    found = report(tree, 2)
    (lost,) = [f for f in found.files if any("was ended" in finding.message for finding in f.findings)]
    assert lost.after is None and [f.code for f in lost.findings] == ["DSM003"]
    assert len(list(found.trials(TrialStatus.CONVERTED))) == 4


def test_small_work_stays_in_one_process(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_forked", lambda *_: pytest.fail("a fork for a few small files"))
    assert len(list(report(tree, None).trials(TrialStatus.CONVERTED))) == 5


def test_large_work_is_shared_out_unless_it_may_not(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in tree.rglob("*.py"):
        path.write_text(path.read_text() + "# a long file\n" * (_PAYS // 14))
    alone = report(tree, 1)
    monkeypatch.setattr("ds_migrate.conversion.worker_pool.cores", lambda: 2)
    forked = []
    right = processes._forked
    monkeypatch.setattr(processes, "_forked", lambda *these: forked.append(1) or right(*these))
    assert report(tree, None) == alone
    assert forked == [1]


def test_each_task_is_done_once() -> None:
    answers = processes.spread(lambda number: f"{number} by {os.getpid()}", 1000, 4, *TEXT)
    assert [answer.split()[0] for answer in answers if answer] == [str(number) for number in range(1000)]


def test_what_a_process_finished_before_it_died_counts() -> None:
    others = Barrier()
    begun, begin = os.pipe()

    def work(number: int) -> str:
        if os.getpid() == HERE:
            os.write(begin, bytes(6))
            others.wait()
        else:
            os.read(begun, 1)  # by now this process has a task, and leaves the last one to the fork
            if number == 5:
                os._exit(1)
        return str(number)

    answers = processes.spread(work, 6, 2, *TEXT)
    assert answers.count(None) == 1 and answers[5] is None


def test_a_system_that_has_no_room_for_a_process_does_with_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> int:
        raise BlockingIOError

    monkeypatch.setattr(os, "fork", full)
    assert processes.spread(str, 5, 3, *TEXT) == ["0", "1", "2", "3", "4"]


def test_an_interruption_ends_every_process() -> None:
    reads, writes = os.pipe()
    forks: list[int] = []

    def work(number: int) -> str:
        if os.getpid() == HERE:
            forks.append(int.from_bytes(os.read(reads, 8), "little"))
            raise KeyboardInterrupt
        os.write(writes, os.getpid().to_bytes(8, "little"))
        signal.pause()
        return str(number)

    with pytest.raises(KeyboardInterrupt):
        processes.spread(work, 6, 2, *TEXT)
    with pytest.raises(ProcessLookupError):
        os.kill(forks[0], 0)


def test_progress_is_told_up_to_all_of_it(tree: Path) -> None:
    told: list[tuple[int, int]] = []
    pipeline.migrate(discover([tree]), Options(), lambda done, total: told.append((done, total)), jobs=2)
    assert told == sorted(told) and {total for _, total in told} == {5}
    alone: list[tuple[int, int]] = []
    pipeline.migrate(discover([tree]), Options(), lambda done, total: alone.append((done, total)))
    assert alone == [(done, 5) for done in range(1, 6)]


@pytest.mark.parametrize("number", ["0", "-1", "many"])
def test_jobs_are_a_number_from_1_on(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([".", "--jobs", number]) == 2
    assert "--jobs: invalid" in capsys.readouterr().err
