"""The patch that a preview prints where there is no terminal: git must accept it, to the byte."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest
from ds_migrate.cli.output import patch_base
from ds_migrate.report.patch import file_patch, hunks, patch, split_lines
from hypothesis import given, settings
from hypothesis import strategies as st
from shell_samples import changed, created, git, report_of

# Few distinct lines make long common runs, ends of every kind make the hard cases.
LINES = st.sampled_from(
    [b"a", b"b", b"", b"\tif x:", b"\xff\x00\x80", b"x\ry", b"\x0c", b"-- a", b"@@ -1 +1 @@", "é".encode()]
)
ENDS = st.sampled_from([b"\n", b"\n", b"\r\n", b"\n\n"])
CONTENT = st.lists(st.tuples(LINES, ENDS), max_size=20).map(lambda parts: b"".join(a + b for a, b in parts))
ANY_END = st.tuples(CONTENT, st.sampled_from([b"", b"", b"no newline", b"\r"])).map(b"".join)
NAMES = st.sampled_from(
    ["a.py", "with space.py", "tab\there.py", 'quo"te.py', "back\\slash.py", "ünïcode.py", "d/e/f.py"]
)


def apply(folder: Path, data: bytes) -> None:
    """What ``git apply`` makes of the patch; it must not complain."""
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    command = ["git", "apply", "--whitespace=nowarn", "-"]
    done = subprocess.run(command, cwd=folder, env=environment, input=data, capture_output=True, check=False)
    assert done.returncode == 0, (done.stderr, data)


@settings(max_examples=80, deadline=None)
@given(name=NAMES, before=st.none() | ANY_END, after=ANY_END)
def test_git_apply_gives_the_exact_bytes(name: str, before: bytes | None, after: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, name)
        file.parent.mkdir(parents=True, exist_ok=True)
        if before is not None:
            file.write_bytes(before)
        data = file_patch(name, before, after)
        if data:
            apply(Path(folder), data)
            assert file.read_bytes() == after
        else:
            assert (before or b"") == after


@given(before=ANY_END, after=ANY_END)
def test_hunks_cover_every_difference(before: bytes, after: bytes) -> None:
    old, new = split_lines(before), split_lines(after)
    rebuilt, position = [], 0
    for changes in hunks(old, new, context=1):
        for change in changes:
            if not change.changed:
                assert old[change.old : change.old_end] == new[change.new : change.new_end]
        rebuilt += old[position : changes[0].old] + new[changes[0].new : changes[-1].new_end]
        position = changes[-1].old_end
    assert rebuilt + old[position:] == new


def test_a_missing_final_newline_is_reported() -> None:
    assert file_patch("x", b"a", b"a\n") == (b"--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+a\n")


def test_a_new_file_comes_from_dev_null() -> None:
    assert file_patch("x", None, b"a\n") == b"--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+a\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = Path(os.path.realpath(tmp_path)) / "project"
    (root / "pkg").mkdir(parents=True)
    (root / "pkg/a.py").write_bytes(b"a\n")
    (root / "link.py").symlink_to("pkg/a.py")
    monkeypatch.chdir(root)
    return root


def test_names_are_relative_to_the_current_folder(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(project, "init", "-q")
    monkeypatch.chdir(project / "pkg")
    report = report_of(changed(project / "pkg/a.py", b"a\n", b"b\n"), created(Path("ds_config.json"), b"{}\n"))
    data = patch(report, patch_base(report, project / "pkg"))
    apply(project / "pkg", data)
    assert (project / "pkg/a.py").read_bytes() == b"b\n"
    assert (project / "pkg/ds_config.json").read_bytes() == b"{}\n"


def test_files_elsewhere_are_named_from_their_project(project: Path, tmp_path: Path) -> None:
    git(project, "init", "-q")
    report = report_of(changed(project / "pkg/a.py", b"a\n", b"b\n"))
    (tmp_path / "elsewhere").mkdir()
    base = patch_base(report, tmp_path / "elsewhere")
    assert base == project
    assert b"+++ b/pkg/a.py\n" in patch(report, base)


def test_a_link_is_patched_where_its_file_is(project: Path) -> None:
    report = report_of(changed(Path("link.py"), b"a\n", b"b\n"))
    apply(project, patch(report, project))
    assert (project / "pkg/a.py").read_bytes() == b"b\n"
    assert (project / "link.py").is_symlink()


def test_a_file_that_stays_as_it_is_has_no_patch(project: Path) -> None:
    assert patch(report_of(changed(Path("pkg/a.py"), b"a\n", b"a\n")), project) == b""
