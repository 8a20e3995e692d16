"""The first rule that CONTRIBUTING has its reader write works as it says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ds_migrate.rules.codes import Code

ROOT = Path(__file__).parents[2]
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
FENCED = re.compile(r"`(codemod/\S+)`:\n\n(`{3,})\w+\n(.*?)^\2$", re.M | re.S)


@pytest.fixture
def with_the_first_rule(tmp_path: Path) -> dict[str, str]:
    """The environment of somebody who did what the section says, in a copy of the codemod."""
    shutil.copytree(ROOT / "codemod", tmp_path / "codemod", ignore=shutil.ignore_patterns("__pycache__"))
    codes, page, module = FENCED.findall(CONTRIBUTING)
    with (tmp_path / codes[0]).open("a", encoding="utf-8") as file:
        file.write(codes[2])
    for name, _, text in (page, module):
        (tmp_path / name).write_text(text, encoding="utf-8")
    return {**os.environ, "PYTHONPATH": f"{tmp_path / 'codemod'}{os.pathsep}{ROOT / 'tests'}"}


def run(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, text=True)


def test_the_first_rule_passes_the_tests_that_the_section_names(with_the_first_rule: dict[str, str]) -> None:
    (arguments,) = re.findall(r"^pytest (tests/codemod/test_rules.py -k DSM399)", CONTRIBUTING, re.M)
    tests = run(with_the_first_rule, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments.split())
    assert tests.returncode == 0, tests.stdout
    assert int(re.findall(r"(\d+) passed", tests.stdout)[0]) >= 5


def test_the_first_rule_has_its_page(with_the_first_rule: dict[str, str]) -> None:
    page = run(with_the_first_rule, "-m", "ds_migrate", "--explain", "one-hparam").stdout
    assert page.startswith("DSM399 one-hparam\n\nOne hyperparameter is read with get_hparam.\n")


def test_the_code_of_the_first_rule_is_free() -> None:
    assert "DSM399" not in set(Code)
