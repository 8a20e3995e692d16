"""Run directories and checkpoints of ``ds-train``. Their files stay as they were trained and hashed."""

from __future__ import annotations

import os

from ds_migrate.files.regular_file import read_file

# A file that marks such a folder, what the folder is, and the keys that no other tool's file of that name has.
_MARKS = (
    ("run.json", "run directory", (b'"id"', b'"number"', b'"seed"', b'"status"')),
    ("manifest.json", "checkpoint", (b'"files"', b'"progress"', b'"world_size"')),
)


class TrainingOutput:
    """The folders of one run of ds-migrate that belong to training; each folder is examined once."""

    def __init__(self) -> None:
        self._known: dict[str, str | None] = {}

    def around(self, folder: str) -> str | None:
        """Return the reason why files below ``folder`` (absolute, links resolved) are not converted; None without."""
        folder = folder.rstrip("/") or "/"
        if folder not in self._known:
            parent = os.path.dirname(folder)
            self._known[folder] = (self.around(parent) if parent != folder else None) or _reason(folder)
        return self._known[folder]


def _reason(folder: str) -> str | None:
    for name, kind, keys in _MARKS:
        try:
            data = read_file(f"{folder}/{name}")
        except OSError:
            continue
        if all(key in data for key in keys):
            return f"it belongs to a {kind} of ds-train, {folder}, whose files stay as they were trained"
    return None
