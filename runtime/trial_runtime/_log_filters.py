"""Leave out messages of DeepSpeed that do not concern a user; all others stay. Needs neither torch nor DeepSpeed."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

_LOGGER = "DeepSpeed"
_NO_ACCELERATOR = "Setting accelerator to CPU."
_SKIPPED_STEP = "OVERFLOW! Skipping step. Gradients are non-finite"
_DEVICE_FILES = ("nvidia[0-9]*", "kfd", "davinci[0-9]*", "accel*", "xdxct*")


class _Without(logging.Filter):
    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def filter(self, record: logging.LogRecord) -> bool:
        return self._text not in str(record.msg)


_no_accelerator_filter = _Without(_NO_ACCELERATOR)


def expect_cpu(devices: Path = Path("/dev")) -> None:
    """Leave out DeepSpeed's warning that it found no accelerator, which it logs when it is imported.

    Only where there is none, or the user has hidden it. Where there is one that cannot be used (a torch without CUDA, a
    driver too old), the warning is the only hint.
    """
    if not _has_visible_accelerator(devices):
        logging.getLogger(_LOGGER).addFilter(_no_accelerator_filter)


def expect_skipped_steps() -> None:
    """Leave out DeepSpeed's line for each skipped step: reports of metrics count them."""
    logging.getLogger(_LOGGER).addFilter(_Without(_SKIPPED_STEP))


def log_to_stderr() -> None:
    """Have DeepSpeed log to stderr, as every logger does by default; stdout is for what the trial prints."""
    for handler in logging.getLogger(_LOGGER).handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream in (sys.stdout, sys.__stdout__):
            handler.setStream(sys.stderr)


@contextlib.contextmanager
def cpu_expected() -> Iterator[None]:
    """Do what :func:`expect_cpu` does, and undo it at the end."""
    expect_cpu()
    try:
        yield
    finally:
        logging.getLogger(_LOGGER).removeFilter(_no_accelerator_filter)


@contextlib.contextmanager
def message_left_out(text: str) -> Iterator[None]:
    """Leave out messages with this text inside."""
    found, logger = _Without(text), logging.getLogger(_LOGGER)
    logger.addFilter(found)
    try:
        yield
    finally:
        logger.removeFilter(found)


def _has_visible_accelerator(devices: Path) -> bool:
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    return not hidden and any(found for name in _DEVICE_FILES for found in devices.glob(name))
