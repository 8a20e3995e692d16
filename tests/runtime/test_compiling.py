"""What DeepSpeed compiles at the start is said, and so is what it waits for."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pytest
from deepspeed.ops.op_builder.builder import OpBuilder
from trial_runtime.pytorch import deepspeed as det_ds


class Builder(OpBuilder):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__("some_op")

    def absolute_name(self) -> str:
        return "deepspeed.ops.some_op"

    def sources(self) -> list[str]:
        return []


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where torch would compile to."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setattr(OpBuilder, "jit_load", lambda *_, **__: "loaded")
    (tmp_path / "some_op").mkdir()
    return tmp_path / "some_op"


def said(caplog: pytest.LogCaptureFixture) -> list[Any]:
    with caplog.at_level(logging.WARNING), det_ds.init():
        assert Builder().jit_load() == "loaded"
    return [record.getMessage() for record in caplog.records if "some_op" in record.getMessage()]


def test_compiling_is_reported_where_it_is_not_done_yet(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (message,) = said(caplog)
    assert message.startswith("DeepSpeed compiles some_op")
    caplog.clear()
    (folder / "some_op.so").touch()
    assert said(caplog) == []


def test_a_lock_that_a_killed_process_left_is_named(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    lock = folder / "lock"
    lock.touch()
    os.utime(lock, (0, 0))
    (message,) = said(caplog)
    assert f"remove {lock}" in message


def test_the_lock_of_a_rank_of_the_same_run_is_none_of_these(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "lock").touch()
    (message,) = said(caplog)
    assert message.startswith("DeepSpeed compiles")
