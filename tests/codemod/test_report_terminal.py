"""The report as a terminal shows it."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from ds_migrate.cli.commands import is_versioned
from ds_migrate.findings import FileKind, FileResult, FileStatus, Report, Severity, TrialResult, TrialStatus
from ds_migrate.report.escaping import visible
from ds_migrate.report.highlighting import fold
from ds_migrate.report.summary import Command, Mode
from ds_migrate.report.terminal import Look, show, terminal_console
from ds_migrate.report.word_diff import paired_lines
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text
from shell_samples import changed, created, finding, git, report_of

COMMAND = Command(["src dir"], ["--zero", "1"], is_versioned)
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


def shown(report: Report, mode: Mode = Mode.PREVIEW, width: int = 80) -> str:
    """What ``show`` prints, without colours."""
    stream = io.StringIO()
    console = Console(file=stream, width=width, color_system=None, markup=False, emoji=False, highlight=False)
    show(console, report, mode, COMMAND)
    return stream.getvalue()


def code_rows(text: str, sign: str) -> list[str]:
    """The code of added or removed rows, without their gutter."""
    return [match[1] for match in re.finditer(rf"^ [ \d]+ {re.escape(sign)} (.*)$", text, re.MULTILINE)]


def test_markup_and_emoji_in_source_are_shown_as_they_are() -> None:
    text = shown(report_of(changed(Path("a.py"), b"", b"x: Optional[str] = d[':smile:'][bold]\n")))
    assert code_rows(text, "+") == ["x: Optional[str] = d[':smile:'][bold]"]


def test_control_characters_and_reordering_are_escaped() -> None:
    text = shown(report_of(changed(Path("a\x1b[2J.py"), b"", "x = '\x1b[31m\u202e\x07'\n".encode())))
    assert "\x1b" not in text and "\u202e" not in text
    assert "x = '\\x1b[31m\\u202e\\x07'" in text
    assert "a\\x1b[2J.py" in text


@pytest.mark.parametrize("data", [b"# caf\xe9\n", b"# -*- coding: latin-1 -*-\n# caf\xe9\n"])
def test_bytes_of_any_encoding_are_shown(data: bytes) -> None:
    text = shown(report_of(changed(Path("a.py"), b"", data)))
    assert ("café" in text) == (b"latin-1" in data)
    assert ("caf\\xe9" in text) == (b"latin-1" not in data)


def test_carriage_returns_are_shown_unless_every_line_ends_in_one() -> None:
    assert "\\r" not in shown(report_of(changed(Path("a.py"), b"a\r\nb\r\n", b"a\r\nc\r\n")))
    assert "c\\r" in shown(report_of(changed(Path("a.py"), b"a\nb\n", b"a\nc\r\n")))


def test_tabs_keep_their_columns_and_are_seen() -> None:
    text = shown(report_of(changed(Path("a.py"), b"", b"if x:\n\ty\t= 1\n")))
    assert code_rows(text, "+") == ["if x:", "→   y→  = 1"]


def test_a_missing_final_newline_is_shown() -> None:
    assert "no newline at end of file" in shown(report_of(changed(Path("a.py"), b"x = 1\n", b"x = 1")))


@settings(max_examples=60, deadline=None)
@given(
    text=st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=60) | st.text("ab, 界([.", max_size=200),
    width=st.integers(2, 40),
)
@example(text="    " + "界" * 30, width=3)
def test_folding_a_line_loses_nothing_and_fits(text: str, width: int) -> None:
    text = visible(text)
    rows = list(fold(Text(text), width))
    assert "".join(row.plain for row in rows).replace(" ", "") == text.replace(" ", "")
    assert all(row.cell_len <= width or len(row.plain.strip()) == 1 for row in rows)


@settings(max_examples=30, deadline=None)
@given(line=st.text("abc_ (,.[]'\"=#:", min_size=1, max_size=300), width=st.integers(40, 120))
def test_no_row_is_wider_than_the_terminal_and_no_text_is_lost(line: str, width: int) -> None:
    message = finding(Severity.REVIEW, line, help=line)
    text = shown(report_of(changed(Path("a.py"), b"", line.encode() + b"\n", message)), width=width)
    # A command to type is one line, for the terminal to wrap: it is there to be copied.
    assert max(cell_len(row) for row in text.splitlines() if "ds-migrate" not in row) <= width
    squeezed = re.sub(r"\s", "", text)
    wanted = re.sub(r"\s", "", line)
    assert squeezed.count(wanted) >= 3


def test_line_numbers_are_those_of_both_versions() -> None:
    before = b"".join(b"line %d\n" % number for number in range(1, 9))
    text = shown(report_of(changed(Path("a.py"), before, before.replace(b"line 5\n", b"new\nnewer\n"))))
    assert [row for row in text.splitlines() if re.match(r" [ \d] [ \d] (?! *⋯)", row)] == [
        " 2 2   line 2",
        " 3 3   line 3",
        " 4 4   line 4",
        " 5   - line 5",
        "   5 + new",
        "   6 + newer",
        " 6 7   line 6",
        " 7 8   line 7",
        " 8 9   line 8",
    ]


def test_a_gap_names_the_function_it_leads_into() -> None:
    body = b"".join(b"        x%d = 1\n" % number for number in range(9))
    before = b"class Net:\n    def forward(self):\n" + body
    text = shown(report_of(changed(Path("a.py"), before, before.replace(b"x8 = 1", b"x8 = 2"))))
    assert re.search(r"^ +⋯  def forward$", text, re.MULTILINE)


def test_findings_are_grouped_by_severity_over_all_files_the_most_serious_first() -> None:
    first = changed(Path("a.py"), b"", b"x\n", finding(Severity.CONVERTED, "converted it", line=9))
    first.findings.append(finding(Severity.REVIEW, "look here", help="at that"))
    second = FileResult(Path("b.py"), findings=[finding(Severity.BLOCKED, "cannot", line=9, column=0)])
    text = shown(report_of(first, second))
    assert text.index("blocked (1)\n") < text.index("to review (1)\n") < text.index("converted (1)\n")
    assert "    b.py:9 DSM204 cannot\n" in text
    assert "    a.py:3:5 DSM204 look here\n      help: at that\n" in text


LINES = b"".join(b"line %d\n" % number for number in range(1, 40))
EDITED = LINES.replace(b"line 5\n", b"row 5\n").replace(b"line 8\n", b"row 8\n").replace(b"line 30\n", b"row 30\n")


def test_each_change_is_preceded_by_the_rules_behind_it_and_their_reasons() -> None:
    found = [
        finding(Severity.CONVERTED, "the fifth", line=5, column=0),
        finding(Severity.REVIEW, "the eighth", line=8),
        finding(Severity.CONVERTED, "leads up to the eighth", line=7),
        finding(Severity.CONVERTED, "the last", line=30),
    ]
    rows = shown(report_of(changed(Path("a.py"), LINES, EDITED, *found))).splitlines()
    diff = rows[: next(at for at, row in enumerate(rows) if "to review (1)" in row)]
    notes = [
        (row.split("DSM204 ")[1], code_rows("\n".join(diff[at:]), "-")[0])
        for at, row in enumerate(diff)
        if "DSM204" in row
    ]
    assert notes == [
        ("the fifth", "line 5"),
        ("leads up to the eighth", "line 8"),
        ("the eighth", "line 8"),
        ("the last", "line 30"),
    ]
    assert "converted (" not in "\n".join(rows)


def test_a_new_file_gives_first_why_it_is_as_it_is() -> None:
    file = created(Path("c.json"), b"{\n}\n")
    file.findings.append(finding(Severity.CONVERTED, "a reason", line=2))
    text = shown(report_of(file))
    assert text.index("DSM204 a reason") < text.index("+ {")
    assert "converted (" not in text


def test_what_was_converted_without_a_change_near_it_is_listed() -> None:
    text = shown(report_of(changed(Path("a.py"), LINES, EDITED, finding(Severity.CONVERTED, "far away", line=18))))
    assert "converted (1)\n    a.py:18:5 DSM204 far away" in text


def test_findings_of_a_config_stand_with_the_change_below_them() -> None:
    file = changed(Path("c.yaml"), LINES, EDITED, finding(Severity.CONVERTED, "a section", line=12))
    file.kind = FileKind.EXPERIMENT
    text = shown(report_of(file))
    assert text.index("row 8") < text.index("a section") < text.index("row 30")


def split_rows(text: str) -> list[tuple[str, str]]:
    """The two sides of each row, without white space at their ends."""
    return [(row.partition("│")[0].strip(), row.partition("│")[2].strip()) for row in text.splitlines() if "│" in row]


def test_a_wide_terminal_shows_both_versions_side_by_side() -> None:
    before = b"same\nself.model = wrap(net)\ngone\nsame too\n"
    after = b"same\nnew\nself.model = net\nsame too\n"
    report = report_of(changed(Path("a.py"), before, after))
    assert split_rows(shown(report, width=160)) == [
        ("1   same", "1   same"),
        ("", "2 + new"),
        ("2 - self.model = wrap(net)", "3 + self.model = net"),
        ("3 - gone", ""),
        ("4   same too", "4   same too"),
    ]
    assert split_rows(shown(report, width=159)) == []


def test_a_line_that_only_moved_to_the_side_is_a_change() -> None:
    report = report_of(changed(Path("a.py"), b"f(\n        a, b)\n", b"g(\n    a, b)\n"))
    assert ("2 -         a, b)", "2 +     a, b)") in split_rows(shown(report, width=160))


def test_the_view_can_be_chosen() -> None:
    report = report_of(changed(Path("a.py"), b"a = 1\n", b"a = 2\n"))
    stream = io.StringIO()
    for width, view, split in ((80, "split", True), (200, "unified", False)):
        console = Console(file=stream, width=width, color_system=None, markup=False, emoji=False, highlight=False)
        show(console, report, Mode.PREVIEW, COMMAND, Look(view))
        assert bool(split_rows(stream.getvalue())) is split
        stream.truncate(0)


def test_a_new_file_has_one_side_only() -> None:
    assert split_rows(shown(report_of(created(Path("c.json"), b"{}\n")), width=200)) == []


def test_a_finding_in_a_notebook_names_its_cell() -> None:
    file = FileResult(Path("n.ipynb"), FileKind.NOTEBOOK, findings=[finding(Severity.REVIEW, cell=2)])
    assert "n.ipynb:cell 2:3:5 DSM204" in shown(report_of(file))


def test_a_preview_ends_with_the_command_that_applies_it() -> None:
    text = shown(report_of(changed(Path("a.py"), b"", b"x\n"), searched=2000))
    assert "1 trial in 2,000 files: 1 to convert." in text
    assert "ds-migrate --write --zero 1 'src dir'" in text


def test_a_preview_ends_with_how_to_see_that_it_trains_the_same() -> None:
    configs = [
        FileResult(Path(name), FileKind.EXPERIMENT, FileStatus.CHANGED, b"a", b"b") for name in ("a.yaml", "const.yaml")
    ]
    assert "to see that it trains the same  ds-verify const.yaml" in shown(report_of(*configs))


def test_a_preview_of_a_plain_loop_ends_with_the_proof_of_the_script_that_starts_it() -> None:
    library = changed(Path("loops.py"), b"", b"def fit():\n    init_distributed()\n")
    script = changed(Path("train.py"), b"", b'if __name__ == "__main__":\n    init_distributed()\n')
    helper = changed(Path("infer.py"), b"", b'if __name__ == "__main__":\n    main()\n')
    helper.trials.clear()
    report = report_of(library, helper, script)
    report.is_plain = True
    assert "to see that it trains the same  ds-verify --plain train.py" in shown(report)
    report.files.remove(script)
    assert "ds-verify" not in shown(report)


def test_after_writing_there_is_something_to_compare_with_only_in_git(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    report = report_of(FileResult(Path("const.yaml"), FileKind.EXPERIMENT, FileStatus.CHANGED, b"a", b"b"))
    assert "ds-verify" not in shown(report, Mode.WRITE)
    git(tmp_path, "init", "-q")
    assert "ds-verify const.yaml" in shown(report, Mode.WRITE)


def test_after_writing_a_check_names_what_is_left_to_a_person() -> None:
    for help_text in ("do this", None):
        file = changed(Path("a.py"), b"", b"x\n", finding(Severity.REVIEW, help=help_text))
        assert ("ds-migrate --check --zero 1 'src dir'" in shown(report_of(file), Mode.WRITE)) == bool(help_text)


def test_writing_ends_with_how_to_train_and_how_to_take_it_back() -> None:
    config = FileResult(Path("const.yaml"), FileKind.EXPERIMENT, FileStatus.CHANGED, b"a", b"b")
    text = shown(report_of(changed(Path("a.py"), b"", b"x\n"), config), Mode.WRITE)
    assert "+ x" not in text
    assert "1 converted." in text
    assert "ds-train const.yaml" in text
    assert "ds-migrate --undo" in text


def test_a_blocked_trial_is_reported_to_be_left_as_it_is() -> None:
    trial = TrialResult("Trial", 4, TrialStatus.BLOCKED)
    file = FileResult(Path("a.py"), status=FileStatus.BLOCKED, trials=[trial], findings=[finding(Severity.BLOCKED)])
    text = shown(report_of(file))
    assert "a.py  left as it is" in text
    assert "Trial  is blocked" in text
    assert "ds-migrate --explain DSM204" in text
    assert "--write" not in text


def blocked(line: str, column: int, **more: Any) -> FileResult:
    found = finding(Severity.BLOCKED, "it cannot be", line=2, column=column, **more)
    return FileResult(Path("a.py"), status=FileStatus.BLOCKED, before=f"x = 1\n{line}\n".encode(), findings=[found])


@pytest.mark.parametrize(
    "line, column, rows",
    [
        ("\t    self.opt.step(loss)", 6, ["self.opt.step(loss)", "^^^^^^^^^^^^^"]),
        ("f('界', opt)", 8, ["f('界', opt)", "        ^^^"]),
        ("x = (1 +", 5, ["x = (1 +", "    ^"]),
        (
            "x = " + "f(1) + " * 9 + "opt.step(loss) + " + "f(2) + " * 9,
            68,
            ["…+ f(1) + f(1) + f(1) + f(1) + opt.step(loss) + f(2) + f(2) + f(2) + …", " " * 31 + "^" * 8],
        ),
    ],
)
def test_a_blocked_finding_shows_its_line_and_what_it_is_about(line: str, column: int, rows: list[str]) -> None:
    text = shown(report_of(blocked(line, column)))
    assert [row.partition("│ ")[2].rstrip() for row in text.splitlines() if "│ " in row] == rows
    assert max(map(cell_len, text.splitlines())) <= 80


def test_findings_about_no_place_of_the_source_show_no_line() -> None:
    for file in (blocked("x()", 0), blocked("x()", 9)):
        assert "│" not in shown(report_of(file))


def test_many_findings_show_their_lines_only_when_asked() -> None:
    findings = [finding(Severity.BLOCKED, f"reason {number}", line=1, column=1) for number in range(9)]
    report = report_of(FileResult(Path("a.py"), status=FileStatus.BLOCKED, before=b"x = 1\n", findings=findings))
    assert "│" not in shown(report)
    stream = io.StringIO()
    console = Console(file=stream, width=80, color_system=None)
    show(console, report, Mode.PREVIEW, COMMAND, Look(is_complete=True))
    assert stream.getvalue().count("1 │ x = 1") == 9


def test_nothing_found_is_reported() -> None:
    assert "No PyTorchTrial in 3 files." in shown(report_of(searched=3))


@pytest.mark.parametrize(
    ("color", "variables", "coloured"),
    [
        ("always", {}, True),
        ("always", {"NO_COLOR": "1"}, True),
        ("auto", {"FORCE_COLOR": "1"}, True),
        ("auto", {"NO_COLOR": "1", "FORCE_COLOR": "1"}, False),
        ("never", {"FORCE_COLOR": "1"}, False),
        ("auto", {}, False),
    ],
)
def test_colour_is_what_was_asked_for(
    color: str, variables: dict[str, str], coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    stream = io.StringIO()
    show(terminal_console(stream, color), report_of(changed(Path("a.py"), b"", b"x\n")), Mode.PREVIEW, COMMAND)
    assert bool(re.search(r"\x1b\[[0-9;]*[34]8;|\x1b\[[0-9;]*3[1-7]m", stream.getvalue())) is coloured
    if color == "never":
        assert "\x1b" not in stream.getvalue()


@pytest.mark.parametrize("colorfgbg", ["", "0;15", "15;0"])
@pytest.mark.parametrize("system", ["standard", "256", "truecolor"])
def test_colours_change_no_text(system: str, colorfgbg: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLORFGBG", colorfgbg)
    report = report_of(
        changed(Path("a.py"), b"def f():\n    '''two\n    lines'''\n", b"def f(x=1):\n    '''two\n    rows'''\n"),
        created(Path("c.json"), b'{"a": 1}\n'),
    )
    stream = io.StringIO()
    console = Console(
        file=stream,
        width=80,
        force_terminal=True,
        color_system=system,  # type: ignore[arg-type]
        markup=False,
        emoji=False,
        highlight=False,
    )
    show(console, report, Mode.PREVIEW, COMMAND)
    plain = [row.rstrip() for row in ESCAPES.sub("", stream.getvalue()).splitlines()]
    assert plain == [row.rstrip() for row in shown(report).splitlines()]


def test_changed_words_are_found_in_lines_that_became_each_other() -> None:
    old = ["self.model = self.context.wrap_model(net)", "unrelated"]
    new = ["completely(different)", "self.model = self.context.wrap_model_engine(engine)"]
    (pair,) = paired_lines(old, new)
    assert (pair.old, pair.new) == (0, 1)
    assert [old[0][slice(*span)] for span in pair.old_spans] == ["wrap_model", "net"]
    assert [new[1][slice(*span)] for span in pair.new_spans] == ["wrap_model_engine", "engine"]


def test_pairs_are_in_order_and_have_the_most_in_common() -> None:
    old = ["a = f(1)", "b = g(2, 3, 4)", ")"]
    new = ["b = g(2, 3, 5)", "a = f(1)", ")", "a = f(2)"]
    assert [(pair.old, pair.new) for pair in paired_lines(old, new)] == [(1, 0)]
    assert [(pair.old, pair.new) for pair in paired_lines(new, old)] == [(0, 1)]


def test_unlike_lines_are_no_pair() -> None:
    assert paired_lines(["alpha beta"], ["gamma(delta)"]) == []


@pytest.mark.parametrize(
    ("paths", "typed"),
    [
        (["a.py", "pkg/b.py"], "a.py pkg/b.py"),
        ([f"pkg/sub/{number}.py" for number in range(9)], "pkg/sub"),
        ([f"{number}.py" for number in range(9)], "."),
        ([f"pkg/{number}/x.py" for number in range(9)], "pkg"),
        ([f"pkg/{number}.py" for number in range(9)] + ["/abs/x.py"], "."),
    ],
)
def test_a_command_for_many_files_names_their_folder(paths: list[str], typed: str) -> None:
    assert Command(paths).line("--write") == f"ds-migrate --write {typed}"
