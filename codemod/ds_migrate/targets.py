"""The packages that converted code imports from, and their names: the bundled runtime or the official package."""

from __future__ import annotations

from dataclasses import dataclass

from ds_migrate.names import ROWS, Verdict, served_at

DEEPSPEED_MODULE = "determined.pytorch.deepspeed"

# PyTorchTrial's own names -> their DeepSpeedTrial counterparts, below ``pytorch.deepspeed``.
MOVED = {
    row.name: row.served.rpartition(".")[2]
    for row in ROWS.values()
    if row.verdict is Verdict.CONVERT and row.served is not None and row.name.startswith("determined.pytorch.")
}


# Packages of Determined's library, and where the runtime has what is in them.
LIBRARY = {"determined": "", "determined_common": "common"}


def in_library(name: str) -> bool:
    """Return whether a dotted name is one of Determined's library."""
    return name.split(".")[0] in LIBRARY


@dataclass(frozen=True)
class Target:
    """``package`` replaces the prefix ``determined``; ``ships_helpers``: whether the runtime's own extras exist."""

    package: str
    ships_helpers: bool

    def module(self, name: str) -> str:
        """``determined.pytorch`` in this target's spelling."""
        head, dot, rest = name.partition(".")
        if head == "determined":
            return f"{self.package}{dot}{rest}"
        return f"{self.package}.{LIBRARY[head]}{dot}{rest}" if self.ships_helpers and head in LIBRARY else name

    def has(self, qualified: str) -> bool:
        """Return whether the target has a name of Determined's library."""
        return not self.ships_helpers or served_at(qualified) is not None


RUNTIME = Target("trial_runtime", ships_helpers=True)
DETERMINED = Target("determined", ships_helpers=False)


def target_named(name: str) -> Target:
    return DETERMINED if name == "determined" else RUNTIME
