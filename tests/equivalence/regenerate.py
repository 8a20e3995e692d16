"""Writes `fixtures/<name>/after` anew, with the tool itself: `python -m equivalence.regenerate` in tests/."""

from __future__ import annotations

import contextlib
import io
import shutil
import sys
import tempfile
from pathlib import Path

from ds_migrate import cli
from fixture_folders import FIXTURES, PLAIN, TRIALS

# What a fixture that was run where it stands leaves behind.
LEFT_BY_RUNS = (".ds-migrate", "__pycache__", "checkpoints", "runs")


def migrate(name: str, destination: Path) -> tuple[int, str]:
    """Copy the fixture's `before/` to `destination` and convert it there, as a user would."""
    shutil.copytree(FIXTURES / name / "before", destination, ignore=shutil.ignore_patterns(*LEFT_BY_RUNS))
    return check(destination, "--write", *plain(name))


def plain(name: str) -> list[str]:
    """Return the option that a fixture with a plain loop needs."""
    return ["--plain"] if name in PLAIN else []


def check(folder: Path, *options: str) -> tuple[int, str]:
    """Run `ds-migrate` on a folder; return its exit code and what it prints."""
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.redirect_stderr(printed):
        code = cli.main([*options, str(folder)])
    return code, printed.getvalue()


def main() -> int:
    failed = 0
    for name in (*TRIALS, *PLAIN):
        with tempfile.TemporaryDirectory() as scratch:
            code, printed = migrate(name, Path(scratch, name))
            sys.stdout.write(f"{name}: exit {code}\n{printed}")
            if code:
                failed += 1
                continue
            shutil.rmtree(FIXTURES / name / "after", ignore_errors=True)
            left = shutil.ignore_patterns(*LEFT_BY_RUNS)
            shutil.copytree(Path(scratch, name), FIXTURES / name / "after", ignore=left)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
