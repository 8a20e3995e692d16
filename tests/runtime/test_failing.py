# ruff: noqa: ARG002 - trials have the signatures they have
"""What a failing run reports: the first rank's first error last, hangs by name, metrics that are no numbers."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import toys
from forked_python import forked_python
from trial_runtime import pytorch
from trial_runtime.errors import InvalidExperimentException
from trial_runtime.train.run.failure import clear_failures, first_failure, is_own_code, record_failure
from trial_runtime.train.run.hang_watch import Position, describe, is_runnable

TRIAL = """
import os, signal, sys, time
import torch
import toys


class Trial(toys.{base}):
    def train_batch(self, *args, **kwargs):
        rank = self.context.distributed.rank
        if self.context.current_train_batch() == 2:
            {fault}
        return super().train_batch(*args, **kwargs)
"""
CONFIG = "{name: f, entrypoint: 'model_def:Trial', hyperparameters: {global_batch_size: 8}, searcher: {max_length: 4}}"


def ds_train(folder: Path, base: str, fault: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "model_def.py").write_text(TRIAL.format(base=base, fault=fault))
    (folder / "c.yaml").write_text(CONFIG)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(toys.__file__).parent)}
    command = [forked_python(), "-m", "trial_runtime.train", "c.yaml", "--slots", "2", *options]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=200)


@pytest.mark.parametrize("base", ["SimplePT", "SimpleDS"])
@pytest.mark.parametrize("rank", [0, 1])
def test_the_first_error_of_the_first_rank_is_the_last_line(rank: int, base: str, tmp_path: Path) -> None:
    done = ds_train(tmp_path, base, f"if rank == {rank}: raise ValueError('the true error')")
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last == f"ds-train: rank {rank} failed first: ValueError: the true error (model_def.py:11)"


def test_a_killed_rank_is_named_and_lost_connections_are_no_error_of_their_own(tmp_path: Path) -> None:
    done = ds_train(tmp_path, "SimplePT", "if rank == 1: os.kill(os.getpid(), signal.SIGKILL)")
    lines = done.stderr.strip().splitlines()
    assert "ds-train: rank 1 was ended by SIGKILL" in lines
    assert lines[-1].startswith("ds-train: failed with exit code 137; log: ")


# A stopped rank takes the launcher's ten minutes of grace to end, so how it is described is a test below.
HANGS = [
    (
        "if rank == 1: time.sleep(1000)",
        ["rank 0 waits for rank 1 in ", "rank 1 is in train_batch (model_def.py:11)"],
    ),
    (
        "if rank == 1: torch.distributed.barrier()",
        ["rank 1 waits in ", "(model_def.py:11)", "all wait for each other: the ranks do not make the same calls"],
    ),
]


@pytest.mark.parametrize(("fault", "said"), HANGS)
def test_a_hang_is_named(fault: str, said: list[str], tmp_path: Path) -> None:
    done = ds_train(tmp_path, "SimplePT", fault, "--hang-timeout", "4")
    assert done.returncode == 1, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ds-train: rank ")
    assert "failed first: nothing has moved for 4 s: " in last
    for words in said:
        assert words in last
    assert "most recent call first" in (tmp_path / "runs" / "f-1" / "log" / "rank_0.log").read_text()


def test_work_that_outlasts_the_timeout_is_no_hang(tmp_path: Path) -> None:
    work = "end = time.monotonic() + 5 * (rank == 1)\n            while time.monotonic() < end: sum(range(1000))"
    done = ds_train(tmp_path, "SimplePT", work, "--hang-timeout", "2")
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="the state of a thread is read in /proc")
def test_a_thread_that_waits_for_a_processor_is_no_hang() -> None:
    assert is_runnable(threading.get_native_id())
    end = threading.Event()
    sleeper = threading.Thread(target=end.wait)
    sleeper.start()
    try:
        assert sleeper.native_id is not None
        deadline = time.monotonic() + 100
        while is_runnable(sleeper.native_id):  # until it waits
            assert time.monotonic() < deadline
    finally:
        end.set()
        sleeper.join()


@pytest.mark.parametrize(
    ("positions", "said"),
    [
        ([Position(0, "f (a.py:1)", True, 9), None], "rank 0 waits for rank 1 in f (a.py:1); rank 1 does not respond"),
        ([Position(0, "sleep (a.py:1)", False, 9)], "rank 0 is in sleep (a.py:1)"),
        (
            [Position(0, "wait (a.py:1)", True, 9), Position(1, "", False, 9), Position(2, "f (a.py:2)", False, 9)],
            "rank 0 waits for ranks 1, 2 in wait (a.py:1); rank 1 has ended; rank 2 is in f (a.py:2)",
        ),
    ],
)  # fmt: skip
def test_how_a_hang_is_described(positions: list[Position | None], said: str) -> None:
    assert describe(positions) == said


def test_the_earliest_error_counts_unless_it_reports_a_lost_connection(tmp_path: Path) -> None:
    assert first_failure(tmp_path) is None
    record_failure(tmp_path, 0, RuntimeError("[gloo/transport/tcp/pair.cc:537] Connection closed by peer"))
    assert first_failure(tmp_path) == (0, "RuntimeError: [gloo/transport/tcp/pair.cc:537] Connection closed by peer")
    record_failure(tmp_path, 1, "the true one")
    record_failure(tmp_path, 1, "a later one")
    assert first_failure(tmp_path) == (1, "the true one")
    clear_failures(tmp_path)
    assert first_failure(tmp_path) is None


def test_the_trials_own_code() -> None:
    assert is_own_code("/home/me/model_def.py")
    for file in ("/v/lib/python3.11/site-packages/torch/a.py", "/usr/lib/python3.12/json/a.py", "<string>",
                 "/src/runtime/trial_runtime/a.py"):  # fmt: skip
        assert not is_own_code(file)


class Odd(toys.SimplePT):
    odd: Callable[[], Any] = object

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        return {**super().train_batch(batch, epoch_idx, batch_idx), "odd": type(self).odd()}


def test_a_metric_that_is_no_number_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        toys.fit(Odd, {}, tmp_path, max_length=pytorch.Batch(4), reporting_period=pytorch.Batch(1))
    said = [record.message for record in caplog.records if "'odd'" in record.message]
    assert len(said) == 1
    assert "is of the type object, no number: its mean is reported as null" in said[0]


class OddValidation(toys.SimplePT):
    def evaluate_batch(self, batch: Any, batch_idx: int = 0) -> dict[str, Any]:
        return {"odd": object()}


def test_a_validation_metric_that_is_no_number_is_an_error_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidExperimentException, match=r"metric 'odd' cannot be reduced.*of the type object"):
        toys.fit(OddValidation, {}, tmp_path, max_length=pytorch.Batch(1))
