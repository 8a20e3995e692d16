"""The report for other tools and for readers: SARIF, GitHub annotations, one HTML page."""

from __future__ import annotations

import base64
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ds_migrate.findings import FileKind, FileResult, FileStatus, Report, Severity, TrialResult, TrialStatus
from ds_migrate.report.formats.github import to_github
from ds_migrate.report.formats.html import to_html
from ds_migrate.report.formats.sarif import log, to_sarif
from ds_migrate.report.summary import Command, Mode
from hypothesis import given, settings
from hypothesis import strategies as st
from shell_samples import changed, created, finding, report_of

# The standard's own schema, as npm's @microsoft/sarif-multitool-linux 5.7.0 (MIT) has it.
SARIF = json.loads(Path(__file__).with_name("sarif-2.1.0.json").read_text(encoding="utf-8"))
BEFORE = b"from determined.pytorch import PyTorchTrial\n\n\nclass Trial(PyTorchTrial):\n    x = '<b>'\n"
AFTER = b"import deepspeed\n\n\nclass Trial(DeepSpeedTrial):\n    x = '<i>'\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    return tmp_path.resolve()


def everything() -> Report:
    """Files of every kind with findings of every severity."""
    trial = changed(
        Path("a b/tri%l.py"),
        BEFORE,
        AFTER,
        finding(Severity.CONVERTED, "why", line=4),
        finding(Severity.REVIEW, "look"),
    )
    trial.units = frozenset({"one"})
    blocked = FileResult(
        Path("blocked.py"),
        status=FileStatus.BLOCKED,
        trials=[TrialResult("Blocked", 3, TrialStatus.BLOCKED)],
        findings=[finding(Severity.BLOCKED, "50% of it,\nno: all", help="mend\nit")],
    )
    notebook = FileResult(Path("n.ipynb"), FileKind.NOTEBOOK, findings=[finding(Severity.REVIEW, "in a cell", cell=2)])
    error = FileResult(
        Path("bad.py"), status=FileStatus.ERROR, findings=[finding(Severity.ERROR, "bad", line=0, column=0)]
    )
    return report_of(trial, created(Path("ds_config.json"), b"{}\n", units="one"), blocked, notebook, error)


# -- SARIF ------------------------------------------------------------------------------------------------------------


def results(report: Report, mode: Mode = Mode.CHECK) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = log(report, mode)["runs"][0]["results"]
    return found


def test_sarif_keeps_to_the_standard() -> None:
    for report in (everything(), report_of()):
        printed = to_sarif(report, Mode.CHECK)
        assert printed.isascii()
        jsonschema.validate(json.loads(printed), SARIF)


def test_sarif_names_each_rule_that_a_result_has() -> None:
    run = log(everything(), Mode.CHECK)["runs"][0]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert {result["ruleId"]: rules[result["ruleIndex"]] for result in run["results"]} == {code: code for code in rules}


def test_a_conversion_that_waits_is_one_result_with_all_of_its_files_as_the_fix() -> None:
    (work,) = [result for result in results(everything()) if "fixes" in result]
    assert work["ruleId"] == "DSM009"
    assert work["locations"][0]["physicalLocation"]["region"] == {"startLine": 4}
    assert work["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "a%20b/tri%25l.py"
    changes = work["fixes"][0]["artifactChanges"]
    assert [change["artifactLocation"]["uri"] for change in changes] == ["a%20b/tri%25l.py", "ds_config.json"]
    assert [place["message"]["text"] for place in work["relatedLocations"]] == ["DSM204 why"]


def test_what_is_written_waits_no_longer() -> None:
    assert not any("fixes" in result for result in results(everything(), Mode.WRITE))


def applied(before: bytes, work: dict[str, Any], encoding: str = "utf-8") -> bytes:
    """The first file after the fix, by what the standard says of regions."""
    text = before.decode(encoding)
    starts = [0, *(at + 1 for at, character in enumerate(text) if character == "\n")]

    def offset(line: int, column: int) -> int:
        return min(starts[line - 1] + column - 1, len(text)) if line <= len(starts) else len(text)

    for replacement in reversed(work["fixes"][0]["artifactChanges"][0]["replacements"]):
        region, content = replacement["deletedRegion"], replacement["insertedContent"]
        new = content["text"] if "text" in content else base64.b64decode(content["binary"]).decode(encoding)
        first, last = (offset(region[f"{end}Line"], region[f"{end}Column"]) for end in ("start", "end"))
        text = text[:first] + new + text[last:]
    return text.encode(encoding)


lines = st.lists(st.sampled_from(["a", "é", "  b", "", "界"]), max_size=8).map("\n".join)


@settings(max_examples=100, deadline=None)
@given(before=lines, after=lines)
def test_the_fix_turns_the_file_into_what_write_would_write(before: str, after: str) -> None:
    old, new = before.encode(), after.encode()
    if old != new:
        (work,) = results(report_of(changed(Path("a.py"), old, new)))
        assert applied(old, work) == new


def test_the_fix_of_another_encoding_is_text_too() -> None:
    old, new = (f"# -*- coding: latin-1 -*-\nx = '{letter}'\n".encode("latin-1") for letter in "éè")
    (work,) = results(report_of(changed(Path("a.py"), old, new)))
    assert applied(old, work, "latin-1") == new
    (work,) = results(report_of(changed(Path("a.py"), b"x = 1\n", b"x = '\xff'\n")))
    content = work["fixes"][0]["artifactChanges"][0]["replacements"][0]["insertedContent"]
    assert base64.b64decode(content["binary"]) == b"x = '\xff'\n"


# -- GitHub -----------------------------------------------------------------------------------------------------------


def test_annotations_are_workflow_commands_with_everything_escaped() -> None:
    assert list(to_github(everything(), Mode.CHECK)) == [
        "::warning file=a b/tri%25l.py,title=DSM009,line=4"
        "::Trial is a PyTorchTrial that ds-migrate --write converts (2 files)",
        "::warning file=a b/tri%25l.py,title=DSM204,line=3,col=5::look",
        "::error file=blocked.py,title=DSM204,line=3,col=5::50%25 of it,%0Ano: all%0Ahelp: mend%0Ait",
        "::warning file=n.ipynb,title=DSM204 in cell 2::in a cell",
        "::error file=bad.py,title=DSM204::bad",
    ]


def test_a_property_escapes_what_would_end_it() -> None:
    file = FileResult(Path("a:b,c\nd.py"), findings=[finding(Severity.BLOCKED)])
    assert "file=a%3Ab%2Cc%0Ad.py,title" in next(iter(to_github(report_of(file), Mode.CHECK)))


def test_files_are_named_as_the_checkout_knows_them(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_WORKSPACE", str(here.parent))
    said = list(to_github(report_of(FileResult(Path("a.py"), findings=[finding(Severity.BLOCKED)])), Mode.CHECK))
    assert f"file={here.name}/a.py," in said[0]


# -- HTML -------------------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """Tags that are open, attributes seen, and the text of each cell of code."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: set[str] = set()
        self.ids: set[str] = set()
        self.code: list[str] = []
        self._in_code = False
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = dict(attributes)
        self.links |= {value or "" for name, value in attributes if name in ("src", "href", "srcset", "action")}
        self.ids |= {values["id"] or ""} if "id" in values else set()
        if tag == "td":
            self._in_code = (values.get("class") or "").split()[:1] == ["c"]
            self.code += [""] if self._in_code else []
        if tag not in ("meta", "col"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self._in_code = self._in_code and tag != "td"

    def handle_data(self, data: str) -> None:
        if self._in_code:
            self.code[-1] += data


def page(report: Report) -> str:
    return to_html(report, Mode.PREVIEW, Command(["."]))


def test_the_page_needs_nothing_else_and_runs_nothing() -> None:
    text = page(everything())
    parsed = Page(text)
    assert parsed.open == []
    assert {link for link in parsed.links if not link.startswith("#")} == set()
    assert {link[1:] for link in parsed.links} <= parsed.ids
    assert not re.search(r"<script|@import|url\(|\bon\w+=", text)
    assert text.isascii()


def test_the_page_shows_each_line_as_it_is_however_it_looks() -> None:
    before = BEFORE + b"    y = '@style@ &amp; \xc3\xa9'\n"
    code = Page(page(report_of(changed(Path("a.py"), before, AFTER)))).code
    assert {"    x = '<b>'", "    x = '<i>'", "    y = '@style@ &amp; é'", "class Trial(DeepSpeedTrial):"} <= set(code)


def test_changed_words_are_marked() -> None:
    text = page(report_of(changed(Path("a.py"), b"x = f(1, 2)\n", b"x = g(1, 2)\n")))
    assert "<mark>f</mark>" in text and "<mark>g</mark>" in text


def test_findings_stand_above_the_files_and_lead_to_them() -> None:
    text = page(everything())
    assert text.index("Errors") < text.index("Blocked") < text.index("To review") < text.index("<details")
    assert "ds-migrate --write" in re.sub("<[^>]+>", "", text)
    assert "mend\\nit" in text


def test_names_cannot_break_out_of_the_page() -> None:
    file = FileResult(Path("<script>.py"), findings=[finding(Severity.REVIEW, "<img src=x>", help="<b>")])
    assert not re.search(r"<script|<img|<b>", page(report_of(file)))


def test_the_page_lists_its_files_and_leads_to_the_rules_behind_them() -> None:
    text = page(everything())
    parsed = Page(text)
    nav = text[text.index("<nav aria-label=Contents>") : text.index("</nav>")]
    assert nav.count('href="#file-') == len(everything().files)
    assert "#rules" in parsed.links
    assert {f"rule-{found.code}" for _, found in everything().findings()} <= parsed.ids


def test_many_files_are_folded() -> None:
    few, many = (report_of(*(changed(Path(f"{n}.py"), b"a\n", b"b\n") for n in range(count))) for count in (3, 30))
    assert page(few).count("<details class=file open") == 3
    assert "<details class=file open" not in page(many)


def test_without_room_for_two_versions_one_stands_above_the_other() -> None:
    text = page(report_of(changed(Path("a.py"), b"a\nsame\n", b"b\nsame\n")))
    narrow = text[text.index("@media (max-width: 900px)") :]
    assert ".diff tr.same td:nth-child(-n+2), .diff td.none { display: none; }" in narrow
    assert text.count("<tr class=same>") == 1
    assert "min-width" not in text[text.index(".diff {") : text.index(".diff col.n")]


def test_code_that_wraps_keeps_its_indent_and_an_arrow_its_parts() -> None:
    text = page(report_of(changed(Path("a.py"), b"", b"class A:\n\tdef f(self) -> None: ...\n")))
    assert "style='--indent:4ch'" in text
    assert "<span class='u'>-&gt;</span>" in text
