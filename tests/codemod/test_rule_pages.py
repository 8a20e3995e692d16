"""The list of rules, their pages and the help, on a terminal and for programs."""

from __future__ import annotations

import json
import re
import sys

import pytest
from ds_migrate.cli import main
from ds_migrate.rules.codes import Code
from ds_migrate.rules.pages import page_of
from rich.cells import cell_len

ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


def on_terminal(arguments: list[str], columns: int, capsys: pytest.CaptureFixture[str]) -> tuple[str, list[str]]:
    """Return what a terminal gets, and its rows without colours."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(columns))
        patch.setenv("TERM", "xterm-256color")
        assert main([*arguments, "--color", "always"]) == 0
    text = capsys.readouterr().out
    return text, ESCAPES.sub("", text).splitlines()


@pytest.mark.parametrize("columns", [80, 120])
def test_the_list_has_every_rule_in_colour_and_fits(columns: int, capsys: pytest.CaptureFixture[str]) -> None:
    text, rows = on_terminal(["--list-rules"], columns, capsys)
    assert re.findall(r"^  (DSM\d+)", "\n".join(rows), re.M) == sorted(Code)
    assert max(map(cell_len, rows)) <= columns
    assert "`" not in text and "\x1b[36m" in text
    assert re.search(r"^  DSM302  ✔✖   step-optimizer +context", "\n".join(rows), re.M)


def test_every_page_fits_has_no_marks_and_loses_no_word(capsys: pytest.CaptureFixture[str]) -> None:
    for code in Code:
        _, rows = on_terminal(["--explain", code], 80, capsys)
        assert max(map(cell_len, rows)) <= 80
        assert not any(row.lstrip().startswith(("```", "##")) or "`" in row for row in rows)
        squeezed = re.sub(r"\s", "", "".join(rows))
        words = re.sub(r"```\w*|`|^#+ ", " ", "\n".join(page_of(code).sections.values()), flags=re.M).split()
        missing = [word for word in words if word not in squeezed]
        assert missing == []


def test_code_of_a_page_is_highlighted(capsys: pytest.CaptureFixture[str]) -> None:
    text, _ = on_terminal(["--explain", "DSM302"], 80, capsys)
    assert "\x1b[35mdef\x1b[0m" in text


def test_rules_are_listed_and_explained_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list-rules", "--format", "json"]) == 0
    rules = {rule["code"]: rule for rule in json.loads(capsys.readouterr().out)}
    assert list(rules) == sorted(Code)
    assert rules["DSM302"]["results"] == ["converted", "blocked"]
    assert main(["--explain", "DSM302", "--format", "json"]) == 0
    page = json.loads(capsys.readouterr().out)
    assert page["name"] == "step-optimizer" and page["sections"]["Before"].startswith("```python\n")
    assert "a closure optimizer cannot be stepped by an engine" in [each["message"] for each in page["blocked"]]


def test_a_code_that_does_not_exist_is_not_taken_for_another(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--explain", "DSM999"]) == 2
    assert capsys.readouterr().err == "ds-migrate: no rule is called 'DSM999'; --list-rules names them all\n"


def test_help_is_in_colour_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert main(["--help"]) == 0
    plain = capsys.readouterr().out
    assert "\x1b" not in plain and max(map(len, plain.splitlines())) <= 80
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(["--help"]) == 0
    coloured = capsys.readouterr().out
    assert "\x1b[36m--write\x1b[0m" in coloured
    assert ESCAPES.sub("", coloured) == plain
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(["--help"]) == 0
    assert "\x1b[36m" not in capsys.readouterr().out
