"""The examples of the pages about experiment configs are what the tool does."""

from __future__ import annotations

from pathlib import Path

import pytest
from ds_migrate.findings import Severity
from ds_migrate.rules.codes import Code
from ds_migrate.rules.pages import BlockedMessage, page_of
from experiment_project import codes, project


@pytest.mark.parametrize("code", [c for c in Code if c.group == "4" and page_of(c).block("Before")], ids=str)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("final", [True, False])
def test_examples_are_what_the_tool_does(code: Code, newline: str, final: bool, tmp_path: Path) -> None:
    here = project(tmp_path)
    before, after = (
        (text if final else text.rstrip("\n")).replace("\n", newline)
        for text in (page_of(code).block("Before"), page_of(code).block("After"))
    )
    target = "determined" if code is Code.IMAGE_WITHOUT_DEEPSPEED else "runtime"
    result = here.result(before, target=target)
    assert (result.after or result.before) == after.encode()
    assert code in [code for code, _ in codes(result)]
    assert not any(again.to_write for again in here.results(after, target=target))


WAYS_OUT = [
    pytest.param(code, blocked, id=f"{code} {blocked.message}")
    for code in Code
    for blocked in page_of(code).blocked
    if blocked.example is not None and code.group == "4"
]


@pytest.mark.parametrize(("code", "blocked"), WAYS_OUT)
def test_what_is_blocked_follows_once_it_is_written_as_its_page_shows(
    code: Code, blocked: BlockedMessage, tmp_path: Path
) -> None:
    here = project(tmp_path)
    assert blocked.example is not None
    before, after = blocked.example
    (finding,) = [f for f in here.result(before).findings if f.severity is Severity.BLOCKED]
    assert finding.code == code
    assert blocked.matches(finding.message)
    result = here.result(after)
    assert result.after is not None
    assert not any(f.severity is Severity.BLOCKED for f in result.findings)
