"""``run.json`` of a run directory: the run's identity, its status, and its ids in experiment trackers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trial_runtime._whole_file import write_whole

RUN_FILE = "run.json"


def read_record(directory: Path) -> dict[str, Any]:
    """Return the record of a run.

    Raises:
        OSError, ValueError: there is none, or it is not a JSON object.
    """
    fields = json.loads((directory / RUN_FILE).read_text(encoding="utf-8"))
    if not isinstance(fields, dict):
        raise ValueError(f"{directory / RUN_FILE} is not a JSON object")
    return fields


def update_record(directory: Path, **fields: Any) -> None:
    """Change fields of the record, whole or not at all; None removes one, and the others stay."""
    try:
        former = read_record(directory)
    except (OSError, ValueError):
        former = {}
    record = {name: value for name, value in {**former, **fields}.items() if value is not None}
    write_whole(directory / RUN_FILE, json.dumps(record, indent=2) + "\n")
