"""``run.json`` of a run directory: the run's identity, its status, and its ids in experiment trackers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trial_runtime._atomic_file import write_whole

RUN_FILE = "run.json"
MAX_BYTES = 64 << 20
"""Size of the largest JSON file of a run that is read."""


def read_record(directory: Path) -> dict[str, Any]:
    """Return the record of a run.

    Raises:
        OSError, ValueError: there is none, or it is not a JSON object.
    """
    return read_object(directory / RUN_FILE)


def read_small(file: Path) -> str:
    """Return the text of a file that is small where a run wrote it.

    Raises:
        OSError, ValueError: there is none, or it is none of a run.
    """
    if not file.is_file():  # a pipe would never end
        raise FileNotFoundError(f"{file} is no file")
    if file.stat().st_size > MAX_BYTES:
        raise ValueError(f"{file} is larger than {MAX_BYTES >> 20} MiB")
    return file.read_text(encoding="utf-8")


def read_object(file: Path) -> dict[str, Any]:
    """Return the JSON object that a small file holds.

    Raises:
        OSError, ValueError: there is none, or it is not a JSON object.
    """
    try:
        fields = json.loads(read_small(file))
    except RecursionError:
        raise ValueError(f"{file} is nested too deeply") from None
    if not isinstance(fields, dict):
        raise ValueError(f"{file} is not a JSON object")
    return fields


def update_record(directory: Path, **fields: Any) -> None:
    """Change fields of the record, whole or not at all; None removes one, and the others stay."""
    try:
        former = read_record(directory)
    except (OSError, ValueError):
        former = {}
    record = {name: value for name, value in {**former, **fields}.items() if value is not None}
    write_whole(directory / RUN_FILE, json.dumps(record, indent=2) + "\n")
