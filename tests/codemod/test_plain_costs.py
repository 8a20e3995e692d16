"""The cost of following values through programs in which many unknown objects meet."""

from __future__ import annotations

from ds_migrate.plain.dataflow.values import Kind, Value
from ds_migrate.plain.dataflow.variables import Variables


def test_a_variable_does_not_take_over_hundreds_of_parts_at_once() -> None:
    variables = Variables()
    parts = frozenset(Value(Kind.PART, key, "meta[]") for key in range(400))
    whole = Value(Kind.OBJECT, 1)

    variables.add((0, "few"), parts_of(parts, 50))
    variables.add((0, "many"), parts | {whole})

    assert len(variables.held((0, "few"))) == 50
    assert variables.held((0, "many")) == {whole}


def test_an_answer_is_found_again_only_where_a_variable_that_it_reads_has_changed() -> None:
    variables = Variables()
    read, other = (0, "read"), (0, "other")
    asked: list[int] = []

    def answer() -> int:
        asked.append(len(variables.held(read)))
        return asked[-1]

    assert variables.derived(("size", 0), answer) == 0
    variables.add(other, frozenset({Value(Kind.OBJECT, 1)}))
    assert variables.derived(("size", 0), answer) == 0
    variables.add(read, frozenset({Value(Kind.OBJECT, 1)}))
    assert variables.derived(("size", 0), answer) == 1
    assert asked == [0, 1]


def parts_of(values: frozenset[Value], count: int) -> frozenset[Value]:
    return frozenset(sorted(values, key=lambda value: value.key)[:count])
