"""The page on reliability has every promise, and the tests that it names are there."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_promise_is_on_the_page_with_tests_that_exist() -> None:
    spec = importlib.util.spec_from_file_location("reliability", ROOT / "benchmarks/reliability.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    promises = module.read_promises(module.ROWS.read_text("utf-8"))
    assert len(promises) > 10
    page = module.PAGE.read_text("utf-8")
    for promise, tests in promises:
        assert f"| {promise} |" in page, "run python benchmarks/reliability.py"
        assert tests
        for test in tests:
            file, _, name = test.partition("::")
            tree = ast.parse((ROOT / file).read_text("utf-8"))
            names = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
            assert not name or name in names, f"{file} has no {name}"
            assert f"`{test.removeprefix('tests/')}`" in page
