"""``--select``, ``--ignore`` and ``per-file-ignores``: they accept what is to review, and nothing else."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from ds_migrate.cli import main
from test_inline import write

MARKER = "# TODO(ds-migrate DSM350)"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def report(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any], set[str]]:
    """Return the exit code, the summary and the codes to review."""
    code = main([*arguments, "--format", "json", "."])
    found = json.loads(capsys.readouterr().out)
    findings = [finding for file in found["files"] for finding in file["findings"]]
    return code, found["summary"], {finding["code"] for finding in findings if finding["severity"] == "review"}


@pytest.mark.parametrize("codes", ["DSM350", "callbacks", "DSM3", "dsm999,DSM350"])
def test_an_ignored_review_is_counted_and_not_listed(codes: str, capsys: pytest.CaptureFixture[str]) -> None:
    write()
    if "999" in codes:
        assert main(["--ignore", codes, "."]) == 2
        assert "ignore: no rule is called 'dsm999'" in capsys.readouterr().err
        return
    _, summary, reviews = report(capsys, "--ignore", codes)
    assert (summary["ignored"], summary["review"], "DSM350" in reviews) == (1, 0, False)


def test_an_ignored_review_leaves_no_marker_and_changes_nothing_else(here: Path) -> None:
    write()
    main(["--write", "."])
    marked = (here / "trial.py").read_text()
    main(["--undo"])
    main(["--write", "--ignore", "DSM350", "."])
    assert MARKER in marked
    without = re.sub(r" *# TODO\(ds-migrate DSM350\).*\n *#     .*\n", "", marked)
    assert (here / "trial.py").read_text() == without
    assert main(["--check", "."]) == 0


def test_a_review_that_is_not_selected_keeps_its_marker_and_fails_a_check(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write()
    _, summary, reviews = report(capsys, "--select", "DSM4")
    assert (summary["ignored"], reviews) == (1, set())
    assert report(capsys, "--select", "DSM350")[2] == {"DSM350"}
    main(["--write", "--select", "DSM4", "."])
    assert MARKER in (here / "trial.py").read_text()
    capsys.readouterr()
    assert report(capsys, "--check", "--select", "DSM4")[::2] == (1, {"DSM005"})
    assert report(capsys, "--check", "--ignore", "DSM005,DSM350")[0] == 0


@pytest.mark.parametrize("option", ["--select", "--ignore"])
def test_a_blocked_trial_stays_blocked_and_listed(option: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(blocked=True)
    code, summary, _ = report(capsys, "--write", option, "DSM3")
    assert (code, summary["blocked"]) == (1, 1)
    assert (here / "trial.py").read_bytes() == source


@pytest.mark.parametrize("word", ["DSM302", "step-optimizer", "DSM001"])
def test_a_rule_cannot_be_left_out_of_a_conversion(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    write()
    assert main(["--ignore", word, "."]) == 2
    assert f"ignore {word}: it has no review finding to ignore" in capsys.readouterr().err


def test_codes_are_ignored_in_files_that_match(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write()
    for name in ("old", "new"):
        (here / name).mkdir()
        (here / name / "trial.py").write_bytes(source)
    (here / "trial.py").unlink()
    (here / "pyproject.toml").write_text('[tool.ds-migrate.per-file-ignores]\n"/old/" = ["DSM350"]\n')
    _, summary, reviews = report(capsys)
    assert (summary["ignored"], summary["review"], reviews) == (1, 1, {"DSM350"})
    main(["--write", "."])
    assert MARKER in (here / "new/trial.py").read_text()
    assert MARKER not in (here / "old/trial.py").read_text()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('ignore = "DSM350"', "must be a list of strings"),
        ('ignore = ["DSM302"]', "ignore DSM302: it has no review finding"),
        ('[tool.ds-migrate.per-file-ignores]\n"a" = "DSM350"', "must have lists of codes"),
        ('[tool.ds-migrate.per-file-ignores]\n"a" = ["DSM35x"]', "no rule is called 'DSM35x'"),
        ('[tool.ds-migrate.per-file-ignores]\n"a*b*c*d*e*" = ["DSM350"]', "has too many wildcards"),
        ("per-file-ignore = {}", "did you mean per-file-ignores?"),
    ],
)
def test_wrong_settings_are_2_and_name_what_is_wrong(
    text: str, said: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write()
    (here / "pyproject.toml").write_text(f"[tool.ds-migrate]\n{text}\n")
    assert main(["."]) == 2
    assert said in capsys.readouterr().err
