"""A trial class of a project."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ds_migrate.project.module_index import ClassFacts


@dataclass(frozen=True)
class TrialClass:
    """A class that is a PyTorchTrial. ``bases`` are its base classes in this project, mixins included, in the order in
    which Python looks into them; ``LIBRARY_BASE`` is one of them where the trial is built on it. ``again``: the line
    where its file gives its name to another class, else 0."""

    path: Path
    facts: ClassFacts
    kind: str  # "pytorch", "deepspeed", "lightning", "tensorflow", "old-api", "foreign-base", "skipped", "skipped-base"
    bases: tuple[tuple[Path, str], ...] = ()
    again: int = 0

    @property
    def key(self) -> tuple[Path, str]:
        return self.path, self.facts.name
