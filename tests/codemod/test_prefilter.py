"""Searches on the bytes of configs that cannot be parsed: what they find, and that they end."""

from __future__ import annotations

import pytest
from ds_migrate.experiment.yaml_nodes import UnreadableError, read_yaml
from ds_migrate.files.prefilter import line_of_entrypoint


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: 1\nentrypoint: model_def:Trial\n", 2),
        ("entrypoint:\n  - python3\n  - model_def:Trial\n", 1),
        ("entrypoint:\n- python3\n- model_def:Trial\n", 1),
        ("a: {\n  'entrypoint': model_def:Trial\n", 2),
        ("entrypoint: x\nname: Trial\n", None),
        ("entrypoint: Trials\n", None),
        ("Trial: 1\nentrypoint: x\n", None),
        ("entrypoint: x\nentrypoint: Trial\n", 2),
    ],
)
def test_the_line_of_an_entrypoint_that_names_a_trial(text: str, line: int | None) -> None:
    assert line_of_entrypoint(text.encode(), ["Trial"]) == line


@pytest.mark.timeout(60)
@pytest.mark.parametrize("line", [b"    a: b\n", b"  entrypoint: x\n", b"- a\n"])
def test_the_search_for_an_entrypoint_is_linear_in_the_size_of_the_file(line: bytes) -> None:
    assert line_of_entrypoint(b"entrypoint: x\n" + line * 100_000, ["Trial"]) is None


def test_a_large_yaml_file_is_not_parsed() -> None:
    with pytest.raises(UnreadableError, match="larger than 256 KiB"):
        read_yaml(b"entrypoint: model_def:Trial\na: [" + b"1, " * 100_000 + b"]\n")
