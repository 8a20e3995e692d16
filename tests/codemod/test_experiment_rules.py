"""The examples of the pages about experiment configs are what the tool does."""

from __future__ import annotations

from pathlib import Path

import pytest
from ds_migrate.rules.codes import Code
from ds_migrate.rules.pages import page_of
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
