"""Writes `fixtures/<name>/after` anew, with the tool itself: `python -m equivalence.regenerate` in tests/."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from fixture_folders import FIXTURES, PLAIN, TRIALS

# What a fixture that was run where it stands leaves behind.
LEFT_BY_RUNS = (".ds-migrate", "__pycache__", "checkpoints", "runs")

REFUSED = ("plain_distillation",)
"""Plain loops that are not converted."""


def migrate(name: str, destination: Path) -> subprocess.CompletedProcess[str]:
    """Copies the fixture's `before/` to `destination` and converts it there, as a user would."""
    shutil.copytree(FIXTURES / name / "before", destination, ignore=shutil.ignore_patterns(*LEFT_BY_RUNS))
    return check(destination, "--write", *plain(name))


def plain(name: str) -> list[str]:
    """Return the option that a fixture with a plain loop needs."""
    return ["--plain"] if name in PLAIN else []


def check(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Runs `ds-migrate` on a folder."""
    return subprocess.run(
        [sys.executable, "-m", "ds_migrate", *options, str(folder)], capture_output=True, text=True, timeout=60
    )


def main() -> int:
    failed = 0
    for name in (*TRIALS, *PLAIN):
        with tempfile.TemporaryDirectory() as scratch:
            result = migrate(name, Path(scratch, name))
            sys.stdout.write(f"{name}: exit {result.returncode}\n{result.stderr}")
            if result.returncode:
                failed += name not in REFUSED
                continue
            shutil.rmtree(FIXTURES / name / "after", ignore_errors=True)
            left = shutil.ignore_patterns(*LEFT_BY_RUNS)
            shutil.copytree(Path(scratch, name), FIXTURES / name / "after", ignore=left)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
