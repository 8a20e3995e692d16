"""Searches on the bytes of configs that cannot be parsed: what they find, and that they end."""

from __future__ import annotations

import pytest
from ds_migrate.experiment.yaml_nodes import UnreadableError, read_yaml
from ds_migrate.files.prefilter import line_of_entrypoint, may_hold_trial


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


@pytest.mark.parametrize(
    "text",
    [
        "import determined",
        "from determined import pytorch",
        "from determined.pytorch import DataLoader",
        "import os, determined as det",
        "import os, \\\n    determined",
        "import os, \\\r\n    determined\r\n",
        "try: import determined\nexcept ImportError: pass",
        "from \\\n  determined import pytorch",
        f"import {', '.join(f'module_{n}' for n in range(100))}, determined",
        "importlib.import_module('determined.pytorch')",
        '__import__("determined")',
        "class Mine(PyTorchTrial): ...",
    ],
)
def test_whatever_imports_determined_is_read(text: str) -> None:
    assert may_hold_trial(text.encode())
    assert may_hold_trial(f"x = 1\n{text}\n".encode())


@pytest.mark.parametrize(
    "text",
    [
        "# the size is determined by the first row",
        "# of two channels, determined by the input",
        "# 'determined by scanning the entry'",
        '"determined from the environment"',
        "raise ValueError('cannot be determined')",
        "undetermined = determined_by(x)",
        "import os\n# what it has,\n# determined later",
    ],
)
def test_the_english_word_is_no_import(text: str) -> None:
    assert not may_hold_trial(f"{text}\n".encode())
