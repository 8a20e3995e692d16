"""Work on several processes: the same answers, and the end of a process that dies or is stopped."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import examples
import pytest
from ds_migrate import pipeline
from ds_migrate.cli import main
from ds_migrate.conversion import attempt, worker_pool
from ds_migrate.conversion.unit import convert
from ds_migrate.conversion.values import ConversionUnit, UnitResult
from ds_migrate.decisions import decide
from ds_migrate.files.discovery import discover
from ds_migrate.findings import Report, TrialStatus
from ds_migrate.options import Options
from ds_migrate.trial.model import Trial

HERE = os.getpid()


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
@pytest.mark.parametrize(("form", "jobs"), [("text", "2"), ("json", "40"), ("sarif", "3"), ("github", "2")])
def test_the_output_is_the_same_whoever_converts(
    form: str, jobs: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    outputs = []
    for each in ("1", jobs):
        code = main([".", "--format", form, "--jobs", each])
        outputs.append((code, *capfdbinary.readouterr()))
    assert outputs[0][1] and outputs[0] == outputs[1]


def test_a_unit_and_its_result_can_be_sent_to_another_process(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = convert

    def sent(units: Sequence[ConversionUnit]) -> list[UnitResult]:
        copies = pickle.loads(pickle.dumps(units))
        assert copies == units
        results = right(copies)
        assert pickle.loads(pickle.dumps(results)) == results == right(units)
        return results

    monkeypatch.setattr(worker_pool, "convert", sent)
    assert len(list(report(tree, 1).trials(TrialStatus.CONVERTED))) == 5


def test_a_fault_in_another_process_is_its_trials_error_as_in_this_one(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = decide

    def faulty(trial: Trial, *rest: Any) -> object:
        if trial.name == "Trial3":
            raise AssertionError("a case nobody thought of")
        return right(trial, *rest)

    monkeypatch.setattr(attempt, "decide", faulty)
    alone = report(tree, 1)
    assert [t.name for _, t in alone.trials(TrialStatus.BLOCKED)] == ["Trial3"]
    assert report(tree, 3) == alone


def test_a_process_that_dies_takes_one_folder_with_it(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = decide

    def deadly(trial: Trial, *rest: Any) -> object:
        if trial.name == "Trial3" and os.getpid() != HERE:
            os.kill(os.getpid(), signal.SIGKILL)
        return right(trial, *rest)

    monkeypatch.setattr(attempt, "decide", deadly)
    found = report(tree, 2)
    (lost,) = [f for f in found.files if any("was ended" in finding.message for finding in f.findings)]
    assert lost.after is None and [f.code for f in lost.findings] == ["DSM003"]
    assert len(list(found.trials(TrialStatus.CONVERTED))) == 4
    assert not multiprocessing.active_children()


def test_small_work_stays_in_one_process(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "_pool", lambda _: pytest.fail("a process for a few small files"))
    assert len(list(report(tree, None).trials(TrialStatus.CONVERTED))) == 5


def test_large_work_is_shared_out_unless_it_may_not(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "_BYTES_PER_PROCESS", 10_000)
    for path in tree.rglob("*.py"):
        path.write_text(path.read_text() + "# a long file\n" * (worker_pool._BYTES_PER_PROCESS // 14))
    alone = report(tree, 1)
    monkeypatch.setattr(worker_pool, "_cores", lambda: 2)
    pools: list[int] = []
    right = worker_pool._pool

    def counting(processes: int) -> Any:
        pools.append(processes)
        return right(processes)

    monkeypatch.setattr(worker_pool, "_pool", counting)
    assert report(tree, None) == alone
    assert pools == [2]


STARTS_WORK = """
import os, signal, sys, time
from ds_migrate import cli
from ds_migrate.conversion import attempt

def endless(*arguments):
    os.write(1, b"%d\\n" % os.getpid())
    time.sleep(600)

signal.signal(signal.SIGINT, signal.default_int_handler)

attempt.decide = endless
sys.exit(cli.main([sys.argv[1], "--jobs", "2"]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL, signal.SIGTERM])
def test_a_run_that_ends_leaves_no_process_behind(tree: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-c", STARTS_WORK, str(tree)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as run:
        assert run.stdout is not None
        workers: list[int] = []
        try:
            workers += [int(run.stdout.readline()) for _ in range(2)]
            # Ctrl-C reaches every process of a terminal, other signals the one that they are sent to.
            os.killpg(run.pid, number) if number == signal.SIGINT else os.kill(run.pid, number)
            assert run.wait(200) == (130 if number == signal.SIGINT else -number)
            deadline = time.monotonic() + 200
            while time.monotonic() < deadline and any(map(is_running, workers)):
                time.sleep(0.05)
            assert not any(map(is_running, workers))
        finally:
            with suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)


def is_running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"  # where nobody waits for orphans, they stay listed


def test_progress_is_reported_up_to_all_of_it(tree: Path) -> None:
    reported: list[tuple[int, int]] = []
    pipeline.migrate(discover([tree]), Options(), lambda done, total: reported.append((done, total)), jobs=2)
    assert reported == [(done, 5) for done in range(1, 6)]


@pytest.mark.parametrize("number", ["0", "-1", "many"])
def test_jobs_are_a_number_from_1_on(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([".", "--jobs", number]) == 2
    assert "--jobs: invalid" in capsys.readouterr().err
