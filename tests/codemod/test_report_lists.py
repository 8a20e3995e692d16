"""Long reports on a terminal: one row an entry, by folder, and the same finding once."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from ds_migrate.findings import FileResult, FileStatus, Report, Severity, TrialResult, TrialStatus
from ds_migrate.report.highlighting import Palette
from ds_migrate.report.summary import Command, Mode
from ds_migrate.report.terminal import Look, show, terminal_console
from rich.console import Console
from shell_samples import finding, report_of

DEFAULT = Look()


def shown(report: Report, mode: Mode, look: Look = DEFAULT) -> list[str]:
    """Return the rows of a report on a terminal of 80 columns."""
    stream = io.StringIO()
    console = Console(file=stream, width=80, color_system=None, markup=False, emoji=False, highlight=False)
    show(console, report, mode, Command(["."]), look)
    return [row.rstrip() for row in stream.getvalue().splitlines()]


def trial_file(path: str, status: TrialStatus = TrialStatus.CONVERTED) -> FileResult:
    """Return a file with one trial."""
    trials = [TrialResult("Trial", 3, status)]
    if status is not TrialStatus.CONVERTED:
        return FileResult(Path(path), trials=trials)
    return FileResult(Path(path), status=FileStatus.CHANGED, before=b"a\n", after=b"b\n", trials=trials)


def test_a_check_lists_one_row_a_file_below_its_folder() -> None:
    config = FileResult(Path("b/const.yaml"), status=FileStatus.CHANGED, before=b"a\n", after=b"a\nb\n")
    rows = shown(report_of(trial_file("a/m.py"), trial_file("b/model_def.py"), config), Mode.CHECK)
    assert rows[:5] == [
        "a/",
        "  ▲ m.py  +1 −1  Trial would become a DeepSpeedTrial",
        "b/",
        "  ▲ model_def.py  +1 −1  Trial would become a DeepSpeedTrial",
        "  ▲ const.yaml    +1",
    ]
    assert "  Check failed: 2 trials to convert or unblock." in rows


def test_a_long_list_has_the_work_first_and_counts_the_rest() -> None:
    files = [trial_file(f"{n:02}/m.py", TrialStatus.ALREADY_DEEPSPEED) for n in range(30)]
    report = report_of(*files, *(trial_file(f"work{n:02}/m.py") for n in range(50)))
    rows = shown(report, Mode.CHECK)
    assert sum("would become" in row for row in rows) == 40
    assert not any("already" in row for row in rows if "m.py" in row)
    assert "… and 40 files more: --verbose lists them" in rows
    complete = shown(report, Mode.CHECK, Look(is_complete=True))
    assert sum("m.py" in row for row in complete) == 80


def test_the_same_finding_in_many_places_stands_once_with_its_places() -> None:
    files = [
        FileResult(Path(f"{name}.py"), findings=[finding(Severity.REVIEW, "look here", help="at that")])
        for name in "abc"
    ]
    rows = shown(report_of(*files), Mode.CHECK)
    at = rows.index("  ▲ to review (3)")
    assert rows[at + 1 : at + 4] == [
        "    DSM204 look here",
        "      a.py:3:5, b.py:3:5, c.py:3:5",
        "      help: at that",
    ]


def test_a_long_list_of_findings_ends_with_how_many_more() -> None:
    findings = [finding(Severity.REVIEW, f"number {number}") for number in range(50)]
    report = report_of(FileResult(Path("a.py"), findings=findings))
    assert "    … and 30 findings more: --verbose lists them" in shown(report, Mode.CHECK)
    assert sum("number" in row for row in shown(report, Mode.CHECK, Look(is_complete=True))) == 50


@pytest.mark.parametrize(
    ("theme", "reported", "light"),
    [("light", "15;0", True), ("dark", "0;15", False), ("auto", "0;15", True), ("auto", "", False)],
)
def test_the_background_is_the_one_asked_for_or_else_the_one_reported(
    theme: str, reported: str, light: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLORFGBG", reported)
    console = terminal_console(io.StringIO(), "always")
    assert Palette.of(console, theme).light is light
    assert re.fullmatch("#e6ffec|#172d20", Palette(True, light).line("+").code.split(" on ")[1])
