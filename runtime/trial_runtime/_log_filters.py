"""Filters for messages of DeepSpeed that do not help a user. Needs neither torch nor DeepSpeed."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

_LOGGER = "DeepSpeed"
_NO_ACCELERATOR = "Setting accelerator to CPU."
_DEVICE_FILES = ("nvidia[0-9]*", "kfd", "davinci[0-9]*", "accel*", "xdxct*")
UNTESTED_OPTIMIZER = "You are using ZeRO with an untested optimizer"
NOT_STARTED = "Attempting to get learning rate from scheduler before it has started"


class _Without(logging.Filter):
    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def filter(self, record: logging.LogRecord) -> bool:
        return self._text not in str(record.msg)


def expect_cpu(devices: Path = Path("/dev")) -> None:
    """Drop DeepSpeed's warning that it found no accelerator, where there is none or the user has hidden it.

    Where there is one that cannot be used (a torch without CUDA, a driver too old), its warning is the only hint.
    """
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    if hidden or not any(found for name in _DEVICE_FILES for found in devices.glob(name)):
        logging.getLogger(_LOGGER).addFilter(_Without(_NO_ACCELERATOR))


@contextlib.contextmanager
def without(text: str, when: bool = True) -> Iterator[None]:
    """Leave out messages with this text inside."""
    found, logger = _Without(text), logging.getLogger(_LOGGER)
    if when:
        logger.addFilter(found)
    try:
        yield
    finally:
        logger.removeFilter(found)
