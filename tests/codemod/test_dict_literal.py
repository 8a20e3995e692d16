"""Pairs added to dict literals, in every layout."""

from __future__ import annotations

import libcst as cst
import pytest
from ds_migrate.syntax.dict_literal import add_pairs


def test_a_dict_whose_line_gets_too_long_is_spread_over_lines() -> None:
    found = add_pairs(cst.parse_expression("{'a': 1, **b}"), {"k": "1"}, room=5)

    statement = cst.SimpleStatementLine([cst.Expr(cst.ensure_type(found, cst.Dict))])
    assert cst.Module([statement]).code == "{\n    'a': 1,\n    **b,\n    \"k\": 1,\n}\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("{}", '{"k": 1, "l": f(x)}'),
        ("{'a': 1}", '{\'a\': 1, "k": 1, "l": f(x)}'),
        ("{'a': 1,}", '{\'a\': 1, "k": 1, "l": f(x),}'),
        ("{ 'a': 1, **b }", '{ \'a\': 1, **b, "k": 1, "l": f(x) }'),
        (
            "{\n    'a': 1,  # one\n    # above\n    'b': 2,  # two\n}",
            "{\n    'a': 1,  # one\n    # above\n    'b': 2,  # two\n    \"k\": 1,\n    \"l\": f(x),\n}",
        ),
        (
            "{\n    'a': 1,\n    'b': 2  # two\n}",
            "{\n    'a': 1,\n    'b': 2,  # two\n    \"k\": 1,\n    \"l\": f(x)\n}",
        ),
        ("{\n    'a': 1,\n    # below\n}", '{\n    \'a\': 1,\n    # below\n    "k": 1,\n    "l": f(x),\n}'),
        ("{'a': 1,\n 'b': 2}", "{'a': 1,\n 'b': 2,\n \"k\": 1,\n \"l\": f(x)}"),
    ],
)
def test_pairs_are_laid_out_as_the_others(before: str, after: str) -> None:
    module = cst.parse_module(f"x = {before}\n")
    found = add_pairs(cst.parse_expression(before), {"k": "1", "l": "f(x)"})

    assert module.code_for_node(found) == after
