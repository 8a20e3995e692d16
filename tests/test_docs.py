"""Pages that are made while the site is built; the site itself is built by .ci/run."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from ds_migrate.rules.codes import Code
from ds_migrate.rules.outcomes import outcomes_of
from ds_migrate.rules.pages import page_of

ROOT = Path(__file__).parents[1]


def module_of(file: Path) -> ModuleType:
    """Return a module that lies in no package."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pages() -> ModuleType:
    return module_of(ROOT / "docs/pages.py")


@pytest.mark.parametrize("code", Code, ids=str)
def test_the_page_of_the_site_is_the_file_of_the_catalog_and_the_summary(code: Code) -> None:
    source = (ROOT / f"codemod/ds_migrate/rules/catalog/{code}.md").read_text(encoding="utf-8")
    title, _, rest = source.partition("\n")
    assert page_of(code).markdown == f"{title}\n\n**{code.summary}**\n{rest}"


def test_before_and_after_are_code_in_their_language() -> None:
    assert "## Before\n\n```python\ndef train_batch(" in page_of(Code.GRADIENT_CLIPPING).markdown
    assert "## Before\n\n```yaml\nentrypoint:" in page_of(Code.GRADIENT_ACCUMULATION).markdown


def test_every_rule_is_in_the_overview_once(pages: ModuleType) -> None:
    assert re.findall(r"\[(DSM\d+)\]\(\1\.md\)", pages.overview()) == sorted(Code)


def test_the_page_of_a_rule_that_rewrites_python_has_its_source(pages: ModuleType) -> None:
    shown = pages.source_of(Code.STEP_OPTIMIZER)
    assert "<summary>codemod/ds_migrate/rules/dsm302_step_optimizer.py</summary>" in shown
    assert "\ndef apply(ctx: RuleContext) -> None:\n" in shown
    assert pages.source_of(Code.UNREADABLE_SOURCE) == ""


def test_references_of_a_rule_are_links() -> None:
    linked = module_of(ROOT / "docs/reference_pages.py").with_links
    page = page_of(Code.BATCH).markdown
    assert linked(page).startswith(page.partition("## References")[0])
    references = linked(page).partition("## References")[2]
    assert "[`DeepSpeedTrial.train_batch`](../reference/deepspeed/DeepSpeedTrial.md)" in references
    assert "[`trial_runtime.pytorch.deepspeed.Trainer`](../reference/deepspeed/Trainer.md)" in linked(
        "## References\n\ntrial_runtime.pytorch.deepspeed.Trainer, DeepSpeedEngine.step\n"
    )
    assert linked("## References\n\nDSM403\n\n## Source\n\nDSM404\n").endswith(
        "[DSM403](DSM403.md)\n\n## Source\n\nDSM404\n"
    )


def stated_results() -> set[tuple[str, str]]:
    """Return (code, result) wherever the codemod states both in one call or tuple."""
    found = set()
    for file in (ROOT / "codemod/ds_migrate").rglob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        own = re.search(r"^CODE = Code\.(\w+)$", file.read_text(encoding="utf-8"), re.M)
        for node in ast.walk(tree):
            values = node.elts if isinstance(node, ast.Tuple) else node.args if isinstance(node, ast.Call) else []
            words = [ast.unparse(value) for value in values]
            if isinstance(node, ast.Call) and re.search(r"\.(converted|review)$", ast.unparse(node.func)):
                words.append(f"Severity.{ast.unparse(node.func).rpartition('.')[2].upper()}")
            if own and words[:1] == ["CODE"]:
                words.append(f"Code.{own[1]}")
            codes = [Code[word[5:]] for word in words if re.fullmatch(r"Code\.[A-Z_]+", word)]
            severities = [word[9:].lower() for word in words if re.fullmatch(r"Severity\.[A-Z]+", word)]
            found |= {(code.value, severity) for code in codes for severity in severities}
    return found


def test_the_overview_has_the_results_that_the_codemod_states() -> None:
    stated = stated_results()
    assert len(stated) > 60
    codes = {code.value: code for code in Code}
    assert {(code, result) for code, result in stated if result not in outcomes_of(codes[code])} == set()


def test_every_finding_has_a_result_in_the_overview() -> None:
    # they describe a trial or a loop, and report no change
    statuses = {Code.PYTORCH_TRIAL, Code.ALREADY_DEEPSPEED, Code.PLAIN_LOOP}
    assert {code for code in Code if not outcomes_of(code)} == statuses


@pytest.mark.parametrize("package", ["trial_runtime.pytorch", "trial_runtime.pytorch.deepspeed"])
def test_the_reference_has_every_public_name_of_a_package(package: str) -> None:
    reference = module_of(ROOT / "docs/reference_pages.py")
    source = (ROOT / "runtime" / package.replace(".", "/") / "__init__.py").read_text(encoding="utf-8")
    public = re.findall(r'^    "([A-Za-z]\w*)",$', source.partition("__all__")[2], re.M)
    assert len(public) > 15
    named = set(re.findall(rf"^::: {re.escape(package)}\.(\w+)$", "\n".join(reference.pages(package).values()), re.M))
    assert named == set(public)
    assert re.findall(r"^\| \[`(\w+)`\]", reference.overview(package), re.M) == public
