"""DeepSpeed's messages that tell a user nothing; the others stay."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from trial_runtime import _log_filters as messages
from trial_runtime.pytorch.deepspeed._patches.initialize_notices import UNTESTED_OPTIMIZER

FOUND_NONE = "Setting accelerator to CPU. If you have GPU or other accelerator, we were unable to detect it."


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    logger = logging.getLogger("DeepSpeed")
    before = logger.filters[:]
    logger.filters[:] = []
    yield logger
    logger.filters[:] = before


def shown(logger: logging.Logger, text: str) -> bool:
    return bool(logger.filter(logging.LogRecord("DeepSpeed", logging.WARNING, "x.py", 1, text, None, None)))


@pytest.mark.parametrize(
    ("device", "visible", "says"),
    [(None, None, False), ("nvidia0", None, True), ("kfd", None, True), ("nvidia0", "", False), ("nvidia0", "0", True)],
)
def test_that_there_is_no_gpu_is_reported_where_there_is_one(
    device: str | None, visible: str | None, says: bool, logger: logging.Logger, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    if device is not None:
        (tmp_path / device).touch()

    messages.expect_cpu(tmp_path)

    assert shown(logger, FOUND_NONE) is says
    assert shown(logger, "something else")


def test_a_message_is_left_out_for_a_while_only(logger: logging.Logger) -> None:
    text = f"**** {UNTESTED_OPTIMIZER}, proceed with caution *****"

    with messages.message_left_out(UNTESTED_OPTIMIZER):
        assert not shown(logger, text)
        assert shown(logger, "something else")
    assert shown(logger, text)
