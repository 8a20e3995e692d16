"""Writing a report to disk: whole conversions or nothing, and back again."""

from __future__ import annotations

import base64
import json
import os
import signal
import stat
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from ds_migrate.files import journal, writer
from ds_migrate.findings import FileResult, FileStatus, Report, Severity, TrialStatus
from hypothesis import given, settings
from hypothesis import strategies as st
from shell_samples import changed, created, git, report_of


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return Path(os.path.realpath(tmp_path))


def on_disk(root: Path, **contents: bytes) -> dict[str, Path]:
    paths = {name: root / f"{name}.py" for name in contents}
    for name, path in paths.items():
        path.write_bytes(contents[name])
    return paths


def said(file: FileResult) -> str:
    """The messages of the file's errors."""
    return "; ".join(finding.message for finding in file.findings if finding.severity is Severity.ERROR)


def tree(root: Path) -> dict[str, bytes]:
    """Every file below ``root`` but git's own and the journal's, temporary ones included."""
    files = [path for path in root.rglob("*") if path.is_file() and not {".git", ".ds-migrate"} & set(path.parts)]
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


def last(root: Path) -> journal.Entry:
    entry = journal.last_entry(root)
    assert entry is not None
    return entry


def fail_at(monkeypatch: pytest.MonkeyPatch, path: Path, act: Callable[[], None]) -> None:
    """Call ``act`` in place of the first rename onto ``path``."""
    replace = os.replace
    waiting = [path]

    def guarded(source: Path, target: Path) -> None:
        if target in waiting:
            waiting.remove(target)
            act()
        replace(source, target)

    monkeypatch.setattr(os, "replace", guarded)


def full_disk() -> None:
    raise OSError(28, "No space left on device")


# -- writing ----------------------------------------------------------------------------------------------------------


def test_changes_are_written_and_files_created(root: Path) -> None:
    a = on_disk(root, a=b"old")["a"]
    report = report_of(changed(a, b"old", b"new"), created(root / "ds_config.json", b"{}"))
    writer.apply(report, root)
    assert tree(root) == {"a.py": b"new", "ds_config.json": b"{}"}
    assert [file.status for file in report.files] == [FileStatus.CHANGED, FileStatus.CREATED]


def test_mode_bits_are_kept_and_new_files_follow_the_umask(root: Path) -> None:
    a = on_disk(root, a=b"old")["a"]
    a.chmod(0o751)
    umask = os.umask(0o027)
    try:
        writer.apply(report_of(changed(a, b"old", b"new"), created(root / "c.json", b"{}")), root)
    finally:
        os.umask(umask)
    assert stat.S_IMODE(a.stat().st_mode) == 0o751
    assert stat.S_IMODE((root / "c.json").stat().st_mode) == 0o640


def test_a_link_stays_a_link_and_its_file_is_written(root: Path) -> None:
    a = on_disk(root, a=b"old")["a"]
    (root / "link.py").symlink_to("a.py")
    writer.apply(report_of(changed(root / "link.py", b"old", b"new")), root)
    assert (root / "link.py").is_symlink()
    assert a.read_bytes() == b"new"


def test_a_file_that_changed_since_it_was_read_is_left_alone(root: Path) -> None:
    a = on_disk(root, a=b"edited meanwhile")["a"]
    report = report_of(changed(a, b"old", b"new"))
    writer.apply(report, root)
    assert tree(root) == {"a.py": b"edited meanwhile"}
    assert said(report.files[0]) == "changed since this run read it: run again"
    assert report.files[0].status is FileStatus.ERROR
    assert [trial.status for trial in report.files[0].trials] == [TrialStatus.BLOCKED]


def test_a_file_that_is_gone_is_not_made_again(root: Path) -> None:
    report = report_of(changed(root / "a.py", b"old", b"new"))
    writer.apply(report, root)
    assert tree(root) == {}
    assert "is gone since this run read it" in said(report.files[0])


def test_a_file_that_came_to_be_meanwhile_is_not_overwritten(root: Path) -> None:
    a = on_disk(root, a=b"mine")["a"]
    report = report_of(created(a, b"{}"))
    writer.apply(report, root)
    assert tree(root) == {"a.py": b"mine"}
    assert "exists since this run began" in said(report.files[0])


def test_a_read_only_file_is_left_alone(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a = on_disk(root, a=b"old")["a"]
    monkeypatch.setattr(os, "access", lambda path, _mode: Path(path) != a)  # root may write everything
    report = report_of(changed(a, b"old", b"new"))
    writer.apply(report, root)
    assert tree(root) == {"a.py": b"old"}
    assert "read-only" in said(report.files[0])


# -- whole or not at all ----------------------------------------------------------------------------------------------


def two_conversions(root: Path) -> Report:
    """One of a.py and b.py, one of c.py."""
    paths = on_disk(root, a=b"a", b=b"b", c=b"c")
    return report_of(
        changed(paths["a"], b"a", b"A", units="first"),
        changed(paths["b"], b"b", b"B", units="first"),
        changed(paths["c"], b"c", b"C", units="second"),
    )


def test_a_conversion_that_cannot_be_written_whole_is_not_written_and_the_others_are(root: Path) -> None:
    report = two_conversions(root)
    (root / "b.py").write_bytes(b"edited")
    writer.apply(report, root)
    assert tree(root) == {"a.py": b"a", "b.py": b"edited", "c.py": b"C"}
    assert said(report.files[0]) == f"was not written, because it belongs together with {root / 'b.py'}"
    assert not report.files[0].to_write
    assert report.files[2].to_write


@pytest.mark.parametrize("refused", ["a", "b"])
def test_a_failure_in_the_middle_puts_its_conversion_back(
    root: Path, refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = two_conversions(root)
    fail_at(monkeypatch, root / f"{refused}.py", full_disk)
    writer.apply(report, root)
    assert tree(root) == {"a.py": b"a", "b.py": b"b", "c.py": b"C"}
    assert "no space left on device" in said(report.files["ab".index(refused)])


def test_files_that_name_no_conversion_stand_and_fall_together(root: Path) -> None:
    report = two_conversions(root)
    report.files[2].units = frozenset()
    (root / "b.py").write_bytes(b"edited")
    writer.apply(report, root)
    assert tree(root) == {"a.py": b"a", "b.py": b"edited", "c.py": b"c"}


def test_a_file_of_two_conversions_ties_them_together(root: Path) -> None:
    report = two_conversions(root)
    report.files.append(created(root / "ds_config.json", b"{}", units="first second"))
    (root / "a.py").write_bytes(b"edited")
    writer.apply(report, root)
    assert tree(root) == {"a.py": b"edited", "b.py": b"b", "c.py": b"c"}


def test_without_a_journal_nothing_is_written(root: Path) -> None:
    report = two_conversions(root)
    (root / ".ds-migrate").write_text("in the way")
    writer.apply(report, root)
    assert tree(root) == {"a.py": b"a", "b.py": b"b", "c.py": b"c"}
    assert all("journal" in said(file) for file in report.files)


@pytest.mark.parametrize("stopped_at", ["a", "b", "c"])
def test_an_interrupt_leaves_everything_as_it_was(root: Path, stopped_at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    report = two_conversions(root)
    fail_at(monkeypatch, root / f"{stopped_at}.py", lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        writer.apply(report, root)
    assert tree(root) == {"a.py": b"a", "b.py": b"b", "c.py": b"c"}
    assert journal.last_entry(root) is None
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_run_that_wrote_nothing_leaves_no_journal(root: Path) -> None:
    a = on_disk(root, a=b"edited")["a"]
    writer.apply(report_of(changed(a, b"old", b"new")), root)
    assert not (root / ".ds-migrate").exists()


# -- undo -------------------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(before=st.none() | st.binary(max_size=200), after=st.binary(max_size=200), other=st.binary(max_size=20))
def test_undo_restores_any_bytes(before: bytes | None, after: bytes, other: bytes) -> None:
    if before == after:
        return
    with tempfile.TemporaryDirectory() as folder:
        root = Path(os.path.realpath(folder))
        paths = on_disk(root, other=other)
        if before is not None:
            paths |= on_disk(root, a=before)
        was = tree(root)
        file = created(root / "a.py", after) if before is None else changed(root / "a.py", before, after)
        writer.apply(report_of(file, changed(paths["other"], other, other + b"x")), root)
        assert tree(root) == {"a.py": after, "other.py": other + b"x"}
        assert writer.undo(last(root)) == [root / "a.py", root / "other.py"]
        assert tree(root) == was
        assert not (root / ".ds-migrate").exists()


def test_undo_keeps_mode_bits_and_links(root: Path) -> None:
    a = on_disk(root, a=b"old")["a"]
    a.chmod(0o700)
    (root / "link.py").symlink_to("a.py")
    writer.apply(report_of(changed(root / "link.py", b"old", b"new")), root)
    writer.undo(last(root))
    assert (a.read_bytes(), stat.S_IMODE(a.stat().st_mode)) == (b"old", 0o700)
    assert (root / "link.py").is_symlink()


def test_undo_refuses_when_a_file_changed_since_and_loses_nothing(root: Path) -> None:
    writer.apply(two_conversions(root), root)
    (root / "b.py").write_bytes(b"work of a day")
    (root / "c.py").unlink()
    with pytest.raises(writer.RefusedError) as refused:
        writer.undo(last(root))
    assert str(root / "b.py") in str(refused.value)
    assert f"{root / 'c.py'} is gone" in str(refused.value)
    assert tree(root) == {"a.py": b"A", "b.py": b"work of a day"}
    (root / "b.py").write_bytes(b"B")
    (root / "c.py").write_bytes(b"C")
    writer.undo(last(root))
    assert tree(root) == {"a.py": b"a", "b.py": b"b", "c.py": b"c"}


def test_undo_removes_no_file_that_was_edited_after_it_was_created(root: Path) -> None:
    writer.apply(report_of(created(root / "ds_config.json", b"{}")), root)
    (root / "ds_config.json").write_bytes(b'{"mine": 1}')
    with pytest.raises(writer.RefusedError):
        writer.undo(last(root))
    assert tree(root) == {"ds_config.json": b'{"mine": 1}'}


def test_undo_continues_where_it_was_stopped(root: Path) -> None:
    writer.apply(two_conversions(root), root)
    (root / "a.py").write_bytes(b"a")
    assert writer.undo(last(root)) == [root / "b.py", root / "c.py"]
    assert tree(root) == {"a.py": b"a", "b.py": b"b", "c.py": b"c"}


def test_undo_goes_back_run_by_run(root: Path) -> None:
    a = on_disk(root, a=b"1")["a"]
    for before, after in ((b"1", b"2"), (b"2", b"3")):
        writer.apply(report_of(changed(a, before, after)), root)
    writer.undo(last(root))
    assert a.read_bytes() == b"2"
    writer.undo(last(root))
    assert a.read_bytes() == b"1"
    assert journal.last_entry(root) is None


def test_a_conversion_that_was_not_written_is_not_undone(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = two_conversions(root)
    fail_at(monkeypatch, root / "b.py", full_disk)
    writer.apply(report, root)
    (root / "a.py").write_bytes(b"edited")
    assert writer.undo(last(root)) == [root / "c.py"]
    assert tree(root) == {"a.py": b"edited", "b.py": b"b", "c.py": b"c"}


def test_a_run_that_was_killed_while_writing_can_be_undone(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed() -> None:
        raise SystemError("no clean-up runs")

    report = two_conversions(root)
    fail_at(monkeypatch, root / "b.py", killed)
    with pytest.raises(SystemError):
        writer.apply(report, root)
    monkeypatch.undo()
    assert (root / "a.py").read_bytes() == b"A"
    writer.undo(last(root))
    assert tree(root) == {"a.py": b"a", "b.py": b"b", "c.py": b"c"}


# -- the journal ------------------------------------------------------------------------------------------------------


def test_the_journal_is_kept_in_the_work_tree_and_ignored_by_git(root: Path) -> None:
    git(root, "init", "-q")
    (root / "pkg").mkdir()
    a = on_disk(root / "pkg", a=b"old")["a"]
    git(root, "add", "-A")
    git(root, "commit", "-qm", "start")
    writer.apply(report_of(changed(a, b"old", b"new")), root / "pkg")
    assert (root / ".ds-migrate/journal/000001.json").exists()
    assert git(root, "status", "--porcelain") == " M pkg/a.py\n"


def test_a_run_is_found_from_where_it_began_and_from_the_files_it_wrote(root: Path) -> None:
    (root / "started/project").mkdir(parents=True)
    (root / "started/other").mkdir()
    git(root / "started/project", "init", "-q")
    a = on_disk(root / "started/project", a=b"old")["a"]
    writer.apply(report_of(changed(a, b"old", b"new")), root / "started")
    assert journal.last_entry(root / "started") is not None
    assert journal.last_entry(root / "started/project") is not None
    git(root / "started/other", "init", "-q")
    assert journal.last_entry(root / "started/other") is None
    assert journal.last_entry(root) is None


def test_old_runs_are_forgotten(root: Path) -> None:
    a = on_disk(root, a=b"0")["a"]
    for number in range(journal.KEPT_RUNS + 3):
        writer.apply(report_of(changed(a, b"%d" % number, b"%d" % (number + 1))), root)
    kept = sorted(path.name for path in (root / ".ds-migrate/journal").iterdir())
    assert len(kept) == journal.KEPT_RUNS
    assert kept[-1] == f"{journal.KEPT_RUNS + 3:06}.json"


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b'{"format": 1, "files": [{"path": "a", "before": "?", "after": ""}]}']
)
def test_a_broken_journal_is_reported(root: Path, data: bytes) -> None:
    home = root / ".ds-migrate/journal"
    home.mkdir(parents=True)
    (home / "000001.json").write_bytes(data)
    with pytest.raises(journal.JournalError, match=r"000001\.json cannot be read"):
        journal.last_entry(root)


def planted(root: Path, document: object) -> Path:
    """A journal entry as a stranger may ship it."""
    home = root / ".ds-migrate/journal"
    home.mkdir(parents=True, exist_ok=True)
    (home / "000001.json").write_text(document if isinstance(document, str) else json.dumps(document))
    return home


def entry_of(path: str, **changed: object) -> dict[str, object]:
    return {"format": 1, "files": [{"path": path, "before": None, "after": journal.fingerprint(b"mine"), **changed}]}


@pytest.mark.parametrize("place", ["{root}/victim", "{root}/project/../victim", "victim", "{root}/project/link/victim"])
def test_an_entry_reaches_no_file_outside_of_its_project(root: Path, place: str) -> None:
    (root / "victim").write_bytes(b"mine")
    project = root / "project"
    planted(project, entry_of(place.format(root=root)))
    (project / "link").symlink_to(root)
    with pytest.raises(journal.JournalError, match=r"is not a file of the project .*remove it"):
        journal.last_entry(project)
    assert (root / "victim").read_bytes() == b"mine"


@pytest.mark.parametrize("inside", [".git/config", ".ds-migrate/.gitignore"])
def test_an_entry_reaches_no_file_of_git_or_of_the_journal(root: Path, inside: str) -> None:
    planted(root, entry_of(f"{root}/{inside}"))
    with pytest.raises(journal.JournalError, match="is not a file of the project"):
        journal.last_entry(root)


@pytest.mark.parametrize("link", [".ds-migrate", ".ds-migrate/.gitignore", ".ds-migrate/journal"])
def test_a_link_in_the_journal_is_refused_and_not_followed(root: Path, link: str) -> None:
    (root / "victim").mkdir()
    (root / "victim/file").write_bytes(b"mine")
    (root / ".ds-migrate").mkdir()
    if link == ".ds-migrate":
        (root / link).rmdir()
    (root / link).symlink_to(root / ("victim/file" if link.endswith("ignore") else "victim"))
    report = two_conversions(root)
    before = tree(root)
    writer.apply(report, root)
    assert tree(root) == before
    assert all("is a symbolic link" in said(file) for file in report.files)
    with pytest.raises(journal.JournalError, match="is a symbolic link"):
        journal.last_entry(root)


def test_a_link_as_an_entry_is_refused(root: Path) -> None:
    home = planted(root, entry_of(f"{root}/a.py"))
    (home / "000001.json").rename(root / "elsewhere.json")
    (home / "000001.json").symlink_to(root / "elsewhere.json")
    with pytest.raises(journal.JournalError, match=r"000001\.json cannot be read"):
        journal.last_entry(root)


def test_the_size_of_an_entry_and_of_what_it_restores_is_bounded(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_MOST_BYTES", 1000)
    bomb = base64.b64encode(zlib.compress(bytes(5000))).decode()
    for document in (entry_of(f"{root}/a.py", before=bomb), entry_of(f"{root}/a.py", more="x" * 1000)):
        planted(root, document)
        with pytest.raises(journal.JournalError, match="more than 0 MiB"):
            journal.last_entry(root)


@pytest.mark.parametrize(
    "document",
    ["[" * 100_000, "[1]", '{"format": 1, "files": 7}', '{"format": 1}', entry_of("/a\0"), entry_of("/", after=3)],
)
def test_a_malformed_entry_is_one_clear_error(root: Path, document: object) -> None:
    planted(root, document)
    with pytest.raises(journal.JournalError, match=r"cannot be read .*remove it to reach the run before"):
        journal.last_entry(root)


def test_a_run_that_writes_another_project_is_kept_there(root: Path) -> None:
    (root / "one").mkdir()
    (root / "two").mkdir()
    file = on_disk(root / "two", a=b"old")["a"]
    writer.apply(report_of(changed(file, b"old", b"new")), root / "one")
    assert journal.last_entry(root / "one") is None
    entry = journal.last_entry_of(root / "two")
    assert entry is not None
    assert writer.undo(entry) == [file]


def test_files_git_could_not_bring_back_are_named(root: Path) -> None:
    git(root, "init", "-q")
    paths = on_disk(root, clean=b"1", edited=b"1", staged=b"1")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "start")
    paths |= on_disk(root, edited=b"2", staged=b"2", untracked=b"1")
    git(root, "add", "staged.py")
    report = report_of(*(changed(path, path.read_bytes(), b"new") for path in paths.values()))
    assert [path.stem for path in writer.uncommitted(report)] == ["edited", "staged", "untracked"]


def test_outside_git_nothing_is_reported_to_be_uncommitted(root: Path) -> None:
    a = on_disk(root, a=b"old")["a"]
    assert writer.uncommitted(report_of(changed(a, b"old", b"new"))) == []


def test_new_files_are_there_before_the_files_that_need_them(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a = on_disk(root, a=b"old")["a"]
    order: list[str] = []
    replace, unlink = os.replace, os.unlink

    def noted_replace(source: Path, target: Path) -> None:
        order.append(target.name)
        replace(source, target)

    def noted_unlink(path: Path) -> None:
        order.append(path.name)
        unlink(path)

    monkeypatch.setattr(os, "replace", noted_replace)
    monkeypatch.setattr(os, "unlink", noted_unlink)
    report = report_of(changed(a, b"old", b"new"), created(root / "ds_config.json", b"{}"))
    writer.apply(report, root)
    renamed = [name for name in order if name in ("a.py", "ds_config.json")]
    assert renamed == ["ds_config.json", "a.py"]
    order.clear()
    writer.undo(last(root))
    assert order.index("a.py") < order.index("ds_config.json")
