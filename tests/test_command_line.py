"""What all commands have in common on a terminal: colour there, none anywhere else, and suggestions."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

CASES = [
    (("ds_migrate", "--explain", "DSM999"), "ds-migrate:"),
    (("ds_migrate", "--wirte", "."), "ds-migrate:"),
    (("trial_runtime.train", "nosuch.yaml"), "ds-train:"),
    (("trial_runtime.train", "--sed", "3", "c.yaml"), "ds-train:"),
    (("trial_runtime.train", "runs", "show", "nosuch"), "ds-train runs:"),
    (("ds_verify", "nosuch"), "ds-verify:"),
]


def stderr_of(words: Sequence[str], folder: Path, terminal: bool, **environment: str) -> str:
    """Run ``python -m WORDS`` with stderr on a terminal, or in a pipe; return what stands there."""
    there = {**os.environ, **environment}
    if "NO_COLOR" not in environment:
        there.pop("NO_COLOR", None)
    command = [sys.executable, "-m", *words]
    if not terminal:
        return subprocess.run(command, cwd=folder, env=there, capture_output=True, text=True, timeout=300).stderr
    ours, theirs = pty.openpty()
    try:
        subprocess.run(command, cwd=folder, env=there, stdout=subprocess.DEVNULL, stderr=theirs, timeout=300)
    finally:
        os.close(theirs)
    found = b""
    try:
        while piece := os.read(ours, 65536):
            found += piece
    except OSError:  # Linux: all was read, and nobody is left to write
        pass
    os.close(ours)
    return found.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("words, name", CASES, ids=lambda each: each if isinstance(each, str) else " ".join(each))
def test_first_words_of_an_error_are_coloured_on_a_terminal_only(
    words: Sequence[str], name: str, tmp_path: Path
) -> None:
    (tmp_path / "c.yaml").write_text("entrypoint: m:T\n")
    plain = stderr_of(words, tmp_path, terminal=False)
    coloured = stderr_of(words, tmp_path, terminal=True, TERM="xterm-256color")
    assert "\x1b" not in plain
    assert f"\x1b[1;31m{name}\x1b[0m " in coloured
    assert coloured.replace(f"\x1b[1;31m{name}\x1b[0m", name) == plain


def test_no_color_is_respected(tmp_path: Path) -> None:
    assert "\x1b" not in stderr_of(["ds_migrate", "--explain", "DSM999"], tmp_path, terminal=True, NO_COLOR="1")
