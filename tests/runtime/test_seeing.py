"""What a run shows of itself: a bar on a terminal, plain lines elsewhere, metrics in files."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import toys
from trial_runtime._run_metrics import clock
from trial_runtime.pytorch import Batch, Epoch
from trial_runtime.pytorch._loop.progress import Progress
from trial_runtime.pytorch._loop.throughput import Throughput
from trial_runtime.pytorch._reporting.progress_bar import ProgressBar, find_bar_terminal
from trial_runtime.train.run.log_tee import Tee


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def plain(text: str) -> str:
    """Without what moves the cursor and colours."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


@pytest.fixture
def clocked(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, to be set."""
    now = [0.0]
    monkeypatch.setattr("trial_runtime.pytorch._loop.throughput.time.perf_counter", lambda: now[0])
    return now


def throughput_of(clocked: list[float], length: Any = None, **progress: Any) -> Throughput:
    """40 batches of 8 samples took 10 seconds, and 3 steps were skipped."""
    where = Progress(**progress)
    throughput = Throughput(where, length or Batch(100), lambda: where.batches * 8)
    throughput.begin(skipped=1)
    clocked[0] += 10.0
    where.batches += 40
    throughput.report(skipped=4)
    return throughput


# Speed


def test_speed_and_time_left_are_those_since_the_last_report(clocked: list[float]) -> None:
    throughput = throughput_of(clocked)
    assert (throughput.batches_per_second, throughput.samples_per_second, throughput.seconds_left) == (4.0, 32.0, 15.0)
    assert throughput.summary() == "4 batches/s, 32 samples/s, 0:00:15 left, 3 steps skipped (overflow)"


def test_time_between_training_does_not_count(clocked: list[float]) -> None:
    throughput = throughput_of(clocked)
    clocked[0] += 1000.0  # a validation
    throughput.begin(skipped=4)
    clocked[0] += 5.0
    throughput.progress.batches += 40
    throughput.report(skipped=4)
    assert (throughput.batches_per_second, throughput.skipped, throughput.skipped_in_all) == (8.0, 0, 3)


def test_a_length_in_epochs_ends_after_its_last_batch(clocked: list[float]) -> None:
    assert throughput_of(clocked, Epoch(3), epoch_length=30).total == 90
    assert throughput_of(clocked, Epoch(3), epoch_length=31, micro_batches=2).total == 46
    assert throughput_of(clocked, Epoch(3)).total is None


def test_times_are_written_as_clocks_write_them() -> None:
    assert [clock(seconds) for seconds in (0.4, 61.0, 3661.0)] == ["0:00:00", "0:01:01", "1:01:01"]


# The bar


def bar_of(throughput: Throughput, width: int = 120) -> ProgressBar:
    bar = ProgressBar(throughput, Terminal())
    bar.console.width = width
    return bar


def rendered(bar: ProgressBar) -> str:
    with bar.console.capture() as capture:
        bar.console.print(bar.get_renderable())
    return plain(capture.get())


def test_the_bar_shows_position_speed_time_left_and_loss(clocked: list[float]) -> None:
    bar = bar_of(throughput_of(clocked))
    bar.on_training_metrics(40, {"accuracy": 0.5, "loss": 0.123456, "batches": 40}, [])
    line = rendered(bar)
    for part in ("training", "40/100 batches", "32 samples/s", "0:00:15 left", "loss 0.1235", "3 steps skipped"):
        assert part in line
    assert line.count("\n") == 1


def test_a_narrow_terminal_gets_one_line_too(clocked: list[float]) -> None:
    assert rendered(bar_of(throughput_of(clocked), width=40)).count("\n") == 1


def test_a_length_that_nobody_knows_has_no_end(clocked: list[float]) -> None:
    line = rendered(bar_of(throughput_of(clocked, Epoch(3))))
    assert "40 batches" in line
    assert "left" not in line


def attach(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal as stderr; from the test's body, because pytest has its own stderr for each phase of a test."""
    stream = Terminal()
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys, "stderr", stream)
    return stream


def train(tmp_path: Path) -> None:
    toys.fit(toys.SimpleDS, run_dir=tmp_path, max_length=Batch(4), reporting_period=Batch(2))


def test_on_a_terminal_a_run_ends_with_its_whole_bar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = attach(monkeypatch)
    train(tmp_path)
    last = [line for line in plain(terminal.getvalue()).splitlines() if "4/4 batches" in line][-1]
    assert "trained" in last
    assert "loss" in last
    assert "left" not in last


def test_a_run_that_fails_ends_with_a_bar_that_reports_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = attach(monkeypatch)
    monkeypatch.setattr(toys.SimpleDS, "evaluate_batch", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train(tmp_path)
    assert any("stopped" in line and "4/4 batches" in line for line in plain(terminal.getvalue()).splitlines()[-2:])


def test_what_is_logged_stands_above_the_bar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = attach(monkeypatch)
    handler = logging.StreamHandler(sys.stderr)
    logger = logging.getLogger("trial_runtime")
    logger.addHandler(handler)
    level, logger.level = logger.level, logging.INFO
    try:
        train(tmp_path)
    finally:
        logger.removeHandler(handler)
        logger.level = level
    assert handler.stream is terminal  # given back
    lines = [line for line in plain(terminal.getvalue()).splitlines() if "Trained" in line]
    assert [line[: len("Trained 2 of 4 batches")] for line in lines] == [
        "Trained 2 of 4 batches",
        "Trained 4 of 4 batches",
    ]


def test_a_handler_that_looks_the_stream_up_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class LooksUp(logging.Handler):  # as torch 2.15 has one
        stream = property(lambda _: sys.stderr)

    attach(monkeypatch)
    handler = LooksUp()
    monkeypatch.setattr(logging.getLogger("a library"), "handlers", [handler])
    train(tmp_path)
    assert handler.stream is sys.stderr


def test_a_log_file_beside_the_terminal_has_no_bar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = attach(monkeypatch)
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", Tee(terminal, log))

    class Speaking(toys.SimpleDS):
        def build_callbacks(self) -> Any:
            print("a line of the trial's", file=sys.stderr)
            return super().build_callbacks()

    toys.fit(Speaking, run_dir=tmp_path, max_length=Batch(2))
    assert log.getvalue() == "a line of the trial's\n"
    assert "a line of the trial's" in terminal.getvalue()
    assert "2/2 batches" in plain(terminal.getvalue())


def test_reports_that_the_bar_shows_go_to_the_log_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, log = attach(monkeypatch), io.StringIO()
    stream: Any = Tee(terminal, log)
    monkeypatch.setattr(sys, "stderr", stream)
    logger = logging.getLogger("trial_runtime")
    handler = logging.StreamHandler(stream)
    monkeypatch.setattr(logger, "handlers", [handler])
    monkeypatch.setattr(logger, "level", logging.INFO)

    class Speaking(toys.SimpleDS):
        def build_callbacks(self) -> Any:
            logger.info("no routine")
            return super().build_callbacks()

    toys.fit(Speaking, run_dir=tmp_path, max_length=Batch(4), reporting_period=Batch(2), checkpoint_policy="all")

    shown, kept = plain(terminal.getvalue()), log.getvalue()
    assert "no routine" in shown and "no routine" in kept
    for routine in ("Trained 2 of 4 batches", "Validated after 4 batches", "Saved checkpoint"):
        assert routine in kept and routine not in shown
    assert handler.filters == []


def test_the_bar_shows_the_metric_that_is_judged(clocked: list[float]) -> None:
    bar = ProgressBar(throughput_of(clocked), Terminal(), "accuracy")
    bar.console.width = 120
    bar.on_validation_metrics(40, {"batches": 40, "loss": 0.5, "accuracy": 0.25})
    assert rendered(bar).rstrip().endswith("3 steps skipped") and "accuracy 0.25" in rendered(bar)


def test_no_color_means_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = attach(monkeypatch)
    monkeypatch.setenv("NO_COLOR", "1")
    train(tmp_path)
    assert not re.search(r"\x1b\[[0-9;]*3[0-9][0-9;]*m", terminal.getvalue())


@pytest.mark.parametrize("name", ["dumb", "unknown", None])
def test_a_terminal_that_cannot_move_its_cursor_gets_lines(monkeypatch: pytest.MonkeyPatch, name: str | None) -> None:
    terminal = attach(monkeypatch)
    assert find_bar_terminal() is terminal
    if name is None:
        monkeypatch.delenv("TERM")
    else:
        monkeypatch.setenv("TERM", name)
    assert find_bar_terminal() is None


def test_elsewhere_nothing_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    train(tmp_path)
    assert "\x1b" not in stream.getvalue()


def test_a_forked_child_prints_to_the_terminal_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = attach(monkeypatch)

    class Forking(toys.SimpleDS):
        def build_training_data_loader(self) -> Any:
            child = os.fork()
            if child == 0:
                written = terminal.tell()
                print("the child", file=sys.stderr)
                terminal.seek(written)
                os._exit(0 if terminal.read() == "the child\n" else 1)
            assert os.waitpid(child, 0)[1] == 0
            assert sys.stderr is not terminal
            return super().build_training_data_loader()

    outcome = toys.fit(Forking, run_dir=tmp_path, max_length=Batch(1))
    assert outcome is not None
    assert sys.stderr is terminal


# Files


def test_json_lines_have_speed_and_skipped_steps(tmp_path: Path) -> None:
    class Overflowing(toys.SimpleDS):
        """As an fp16 engine does where gradients overflow."""

        def train_batch(self, dataloader_iter: Any, epoch_idx: int, batch_idx: int) -> Any:
            self.model.skipped_steps += int(batch_idx == 1)
            return super().train_batch(dataloader_iter, epoch_idx, batch_idx)

    toys.fit(Overflowing, run_dir=tmp_path, max_length=Batch(4), reporting_period=Batch(2))
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    speeds = [line["pace"] for line in lines if line["group"] == "training"]
    assert [speed["skipped_steps"] for speed in speeds] == [1, 0]
    assert all(speed["batches_per_second"] > 0 and speed["samples_per_second"] > 0 for speed in speeds)


def test_numbers_that_are_none_stay_valid_json(tmp_path: Path) -> None:
    class Diverging(toys.SimpleDS):
        def train_batch(self, dataloader_iter: Any, epoch_idx: int, batch_idx: int) -> Any:
            return {**super().train_batch(dataloader_iter, epoch_idx, batch_idx), "odd": float("nan")}

    toys.fit(Diverging, run_dir=tmp_path, max_length=Batch(1))

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    first = (tmp_path / "metrics.jsonl").read_text().splitlines()[0]
    assert json.loads(first, parse_constant=refuse)["metrics"]["odd"] == "nan"
