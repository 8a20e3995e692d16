"""The advice on checkpoint hooks runs as it is written on the page of DSM350."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
from ds_migrate.rules.codes import Code
from ds_migrate.rules.pages import page_of


@pytest.mark.parametrize(("rank", "printed"), [(0, "saved here\n"), (1, "")])
def test_the_example_acts_on_rank_0_only(rank: int, printed: str, capsys: pytest.CaptureFixture[str]) -> None:
    example = re.search(r"^```python\n(.*?)^```$", page_of(Code.CALLBACKS).sections["Why"], re.M | re.S)
    assert example is not None
    names: dict[str, Any] = {"PyTorchCallback": object}
    exec(example[1], names)
    context = SimpleNamespace(distributed=SimpleNamespace(get_rank=lambda: rank))
    names["Notify"](context).on_checkpoint_end("here")
    assert capsys.readouterr().out == printed
