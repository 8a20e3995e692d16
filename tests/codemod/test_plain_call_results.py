"""Results of functions of plain loops differ by rank in those calls alone whose arguments, or other parts, do."""

from __future__ import annotations

from pathlib import Path

import pytest
from ds_migrate.findings import Severity
from plain_loops import HEADER, run
from test_plain_chosen_data import CHOSEN

LOOP = """\
from torch.utils.data import Subset

{helpers}

MAKE_MODEL
kept = {kept}
for x, y in DataLoader(Subset(data, kept), batch_size=4):
    LOSS_STEP
    rows = {rows}
"""
PLAIN = "def as_list(x):\n    return list(x)"
BUILT = (
    "def as_list(x, size=2):\n    found = []\n    for item in x:\n        found.append(item)\n    return found[:size]"
)
NESTED = (
    "def clean(x):\n    return [one for one in x if one is not None]\n\n\n"
    "def as_list(x):\n    if isinstance(x, int):\n        return [x]\n    y = clean(x)\n    return sorted(y)"
)
AGAIN = "def as_list(x, depth=0):\n    return list(x) if depth else as_list(x, depth + 1)"
METHOD = (
    "class Tools:\n    def as_list(self, x):\n        {line}\n        return list(x)\n\n\n"
    "    def last(self, x):\n        self.as_list(x)\n        return self.seen\n\n\ntools = Tools()"
)


def _reviews(tmp_path: Path, helpers: str, kept: str, rows: str) -> list[str]:
    text = HEADER + LOOP.format(helpers=helpers, kept=kept, rows=rows)
    return [f.message for _, f in run(tmp_path, train=text).findings(Severity.REVIEW)]


@pytest.mark.parametrize("helpers", [PLAIN, BUILT, NESTED, AGAIN])
def test_results_of_a_helper_differ_in_those_calls_that_give_it_what_differs(helpers: str, tmp_path: Path) -> None:
    assert not _reviews(tmp_path, helpers, "as_list(range(8))", "as_list(model(x).argmax(1))")
    assert _reviews(tmp_path, helpers, "as_list(model(torch.zeros(8, 4)).argmax(1))", "as_list(range(8))") == [CHOSEN]


@pytest.mark.parametrize(("line", "found"), [("pass", []), ("self.seen = x", [])])
def test_results_of_methods_differ_by_their_arguments(line: str, found: list[str], tmp_path: Path) -> None:
    helpers = METHOD.format(line=line)
    assert _reviews(tmp_path, helpers, "tools.as_list(range(8))", "tools.as_list(model(x).argmax(1))") == found


@pytest.mark.parametrize(
    ("helpers", "kept"),
    [
        (METHOD.format(line="self.seen = x"), "tools.last(range(8))"),  # what another call has left
        (METHOD.format(line="pass"), "Tools.as_list(tools, model(torch.zeros(8, 4)).argmax(1))"),
        ("def as_list(*x):\n    return list(x[0])", "as_list(model(torch.zeros(8, 4)).argmax(1))"),
        (PLAIN, "as_list(*[model(torch.zeros(8, 4)).argmax(1)])"),
    ],
)
def test_results_stay_for_review_where_all_calls_count(helpers: str, kept: str, tmp_path: Path) -> None:
    rows = "tools.as_list(model(x).argmax(1))" if "Tools" in helpers else "as_list(model(x).argmax(1))"
    assert _reviews(tmp_path, helpers, kept, rows) == [CHOSEN]
