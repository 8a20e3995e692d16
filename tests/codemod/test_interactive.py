"""Asking before each conversion, and the line that says how far a long run is."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from ds_migrate.cli.interactive import Dialogue, EditError, decide, open_editor
from ds_migrate.cli.progress import Progress
from ds_migrate.findings import FileKind, FileResult, FileStatus, Report, Severity, TrialStatus
from ds_migrate.report.summary import Mode, Summary, exit_code
from shell_samples import changed, created, finding, report_of
from test_inline import TRIAL


def three_conversions() -> Report:
    """``one`` has two files, ``two`` and ``three`` have one each."""
    return report_of(
        changed(Path("a.py"), b"a\n", b"A\n", finding(Severity.REVIEW), units="one"),
        created(Path("ds_config.json"), b"{}\n", units="one"),
        changed(Path("b.py"), b"b\n", b"B\n", units="two"),
        changed(Path("c.py"), b"c\n", b"C\n", units="three"),
    )


class Person:
    """Types the given answers; remembers what was asked, shown and told."""

    def __init__(self, *answers: str, edits: dict[str, bytes] | None = None) -> None:
        self._answers: Iterator[str] = iter(answers)
        self._edits = edits or {}
        self.asked: list[str] = []
        self.shown: list[list[str]] = []
        self.told: list[str] = []

    def ask(self, question: str) -> str:
        self.asked.append(question)
        try:
            return next(self._answers)
        except StopIteration:
            raise EOFError from None

    def show(self, files: Sequence[FileResult]) -> None:
        self.shown.append([file.path.name for file in files])

    def edit(self, paths: Sequence[Path]) -> None:
        for path in paths:
            path.write_bytes(self._edits.get(path.name, path.read_bytes()))

    def decide(self, report: Report) -> list[str]:
        """The files that are written afterwards."""
        decide(report, Dialogue(self.show, self.ask, self.told.append, self.edit))
        return [file.path.name for file in report.files if file.to_write]


@pytest.mark.parametrize(
    ("answers", "written", "questions"),
    [
        (["y", "n", "y"], ["a.py", "ds_config.json", "c.py"], 3),
        (["n", "a"], ["b.py", "c.py"], 2),
        (["y", "q"], ["a.py", "ds_config.json"], 2),
        (["y"], ["a.py", "ds_config.json"], 2),
        (["YES", " no ", "all"], ["a.py", "ds_config.json", "c.py"], 3),
        ([], [], 1),
    ],
)
def test_each_conversion_is_one_question_and_quitting_keeps_what_was_accepted(
    answers: list[str], written: list[str], questions: int
) -> None:
    person = Person(*answers)
    assert person.decide(three_conversions()) == written
    assert len(person.asked) == questions
    assert person.asked[0] == "Convert Trial (2 files)? [y,n,a,q,e,?] (1/3) "
    assert person.shown[0] == ["a.py", "ds_config.json"]


def test_anything_else_is_answered_with_help() -> None:
    person = Person("?", "", "y", "q")
    assert person.decide(three_conversions()) == ["a.py", "ds_config.json"]
    assert len(person.told) == 2
    assert "leave it as it is" in person.told[0]
    assert len(person.shown) == 2


def test_what_is_declined_is_counted_and_is_work_that_remains() -> None:
    report = three_conversions()
    Person("n", "y", "y").decide(report)
    summary = Summary.of(report)
    assert (summary.converted, summary.declined, summary.review, summary.changed) == (2, 1, 0, 2)
    assert exit_code(report, Mode.WRITE) == 1
    assert report.files[0].status is FileStatus.UNCHANGED
    assert report.files[0].trials[0].status is TrialStatus.DECLINED


def test_a_config_that_follows_an_earlier_conversion_is_named_itself() -> None:
    config = FileResult(Path("const.yaml"), FileKind.EXPERIMENT, FileStatus.CHANGED, b"a", b"b")
    person = Person("y")
    assert person.decide(report_of(config)) == ["const.yaml"]
    assert person.asked == ["Change const.yaml? [y,n,a,q,e,?] (1/1) "]


def test_an_edited_result_is_shown_again_and_written() -> None:
    report = three_conversions()
    person = Person("e", "y", "q", edits={"a.py": b"EDITED\n", "ds_config.json": b'{"a": 1}\n'})
    person.decide(report)
    assert [file.after for file in report.files] == [b"EDITED\n", b'{"a": 1}\n', None, None]
    assert person.shown == [["a.py", "ds_config.json"], ["a.py", "ds_config.json"], ["b.py"]]


def test_an_edit_that_does_not_parse_is_not_taken() -> None:
    report = three_conversions()
    person = Person("e", "y", "q", edits={"a.py": b"def (:\n", "ds_config.json": b"other\n"})
    person.decide(report)
    assert [file.after for file in report.files[:2]] == [b"A\n", b"{}\n"]
    assert "a.py does not parse" in person.told[0]


def test_an_editor_that_is_not_there_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VISUAL", raising=False)
    for editor, said in (("/no/such/editor", "cannot be started"), ("false", "false ended with 1")):
        monkeypatch.setenv("EDITOR", editor)
        with pytest.raises(EditError, match=said):
            open_editor([tmp_path / "a.py"])


def test_without_a_terminal_nobody_is_asked(tmp_path: Path) -> None:
    (tmp_path / "trial.py").write_text(TRIAL.format(hook="", above="", on="", step=""))
    command = [sys.executable, "-m", "ds_migrate", "--interactive", "."]
    done = subprocess.run(command, cwd=tmp_path, input="y\n", capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--interactive needs a terminal to ask on" in done.stderr


@pytest.mark.parametrize(("answer", "code"), [(b"y\n", 0), (b"n\n", 1)])
def test_on_a_terminal_the_answer_decides(answer: bytes, code: int, tmp_path: Path) -> None:
    source = TRIAL.format(hook="", above="", on="", step="")
    (tmp_path / "trial.py").write_text(source)
    outside, inside = pty.openpty()
    os.write(outside, answer)
    command = [sys.executable, "-m", "ds_migrate", "-i", "."]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdin=inside, stdout=inside, stderr=subprocess.PIPE
    ) as process:
        os.close(inside)
        shown = b"".join(_until_closed(outside))
        assert process.wait(timeout=60) == code
    os.close(outside)
    assert b"Convert Trial (2 files)? [y,n,a,q,e,?] (1/1)" in shown
    assert ("DeepSpeedTrial" in (tmp_path / "trial.py").read_text()) == (code == 0)


def _until_closed(descriptor: int) -> Iterator[bytes]:
    while True:
        try:
            data = os.read(descriptor, 65536)
        except OSError:  # the other end of a pseudo-terminal was closed
            return
        if not data:
            return
        yield data


# -- progress ---------------------------------------------------------------------------------------------------------


def test_a_long_run_reports_how_far_it_is_and_leaves_no_trace() -> None:
    stream, now = io.StringIO(), [0.0]
    progress = Progress(stream, lambda: now[0])
    progress(1, 400)
    assert stream.getvalue() == ""
    now[0] = 1.0
    progress(200, 400)
    progress(201, 400)
    assert stream.getvalue() == "\r  converting " + "━" * 15 + "─" * 15 + " 200/400"
    progress.clear()
    assert stream.getvalue().endswith("\r" + " " * len("  converting " + "━" * 30 + " 200/400") + "\r")


def test_a_short_run_reports_nothing() -> None:
    stream = io.StringIO()
    progress = Progress(stream, lambda: 0.0)
    progress(1, 1)
    progress.clear()
    assert stream.getvalue() == ""
