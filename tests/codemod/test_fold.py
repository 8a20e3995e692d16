"""Generated lines keep within 120 columns."""

from __future__ import annotations

import ast

import pytest
from ds_migrate.syntax.line_folding import WIDTH, fold, fold_new

LONG = "a_rather_long_name_of_something"

FOLDED = {
    "a call": (
        f"value = function({LONG}, {LONG}, {LONG}, {LONG})",
        f"value = function(\n    {LONG},\n    {LONG},\n    {LONG},\n    {LONG},\n)",
    ),
    "a comprehension": (
        f"params = [p for {LONG}, {LONG} in self.param_groups for p in group]",
        f"params = [\n    p for {LONG}, {LONG} in self.param_groups for p in group\n]",
    ),
    "brackets in strings": (
        f'value = function("({LONG}", "]{LONG}", "{LONG},", "{LONG}")',
        f'value = function(\n    "({LONG}",\n    "]{LONG}",\n    "{LONG},",\n    "{LONG}",\n)',
    ),
    "an entry of a dictionary": (
        f'    "key": {{"enabled": {LONG} and {LONG}, "dtype": {LONG}}},',
        f'    "key": {{\n        "enabled": {LONG} and {LONG},\n        "dtype": {LONG},\n    }},',
    ),
    "only the line that is too long": (
        f"if {LONG}:\n    function({LONG}, {LONG}, {LONG}, {LONG})",
        f"if {LONG}:\n    function(\n        {LONG},\n        {LONG},\n        {LONG},\n        {LONG},\n    )",
    ),
}


@pytest.mark.parametrize(("line", "wanted"), [pytest.param(*case, id=name) for name, case in FOLDED.items()])
def test_long_lines_open_their_brackets(line: str, wanted: str) -> None:
    assert fold(line, 8) == wanted
    assert all(len(part) <= WIDTH - 8 for part in wanted.split("\n"))


@pytest.mark.parametrize(
    "line", ["x = f(a, b)", f"# {LONG * 5}", f"x = {' + '.join([LONG] * 5)}", "s = '" + LONG * 5 + "'"]
)
def test_other_lines_stay(line: str) -> None:
    assert fold(line, 8) == line


def test_a_folded_line_means_the_same() -> None:
    line = f"x = f({LONG}[0](1, g({LONG}, {LONG})), key={{'a': [{LONG}, {LONG}]}}, *{LONG})"
    assert ast.dump(ast.parse(fold(line, 8))) == ast.dump(ast.parse(line))


def test_a_long_import_gets_brackets() -> None:
    names = [f"{LONG}_{number}" for number in range(4)]
    after = f"from package.module import {', '.join(names)}\n".encode()
    wanted = "".join(f"    {name},\n" for name in names)
    assert fold_new(b"", after, "    ").decode() == f"from package.module import (\n{wanted})\n"
