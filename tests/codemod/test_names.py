"""The table of names: every public name of the determined package stands in it, and what it says is so."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import pkgutil
import re
import subprocess
import sys
import typing
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from ds_migrate.names import ROWS, Row, Verdict, advice_of, row_of, served_at, verdict_of

ROOT = Path(__file__).parents[2]
# What these need is not installed beside the tests; their names stand in the table from their sources.
CANNOT_IMPORT = {
    "determined.deploy",
    "determined.keras",
    "determined.lightning.experimental",
    "determined.tensorboard.metric_writers.tensorflow",
    "determined.transformers",  # unless transformers is installed
}

# What the table provides and releases before 0.38.1 had.
OLDER = {
    "determined.Categorical",
    "determined.Constant",
    "determined.Double",
    "determined.Integer",
    "determined.Log",
    "determined.experimental.create",
    "determined.experimental.create_trial_instance",
    "determined.pytorch.reset_parameters",
}


def public_modules() -> Iterator[ModuleType]:
    determined = pytest.importorskip("determined")
    yield determined
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for found in pkgutil.walk_packages(determined.__path__, "determined.", onerror=lambda _: None):
            if "._" in found.name or found.name.endswith("__main__"):
                continue
            try:
                yield importlib.import_module(found.name)
            except ImportError:
                assert found.name in CANNOT_IMPORT


def public_names(module: ModuleType) -> Iterator[str]:
    """Yield the names that the module defines, takes from another part of determined, or sets to a value."""
    for name, value in vars(module).items():
        if isinstance(value, ModuleType):
            belongs = value.__name__ == f"{module.__name__}.{name}"
        else:
            belongs = str(getattr(value, "__module__", "determined")).startswith("determined")
        if belongs and not name.startswith("_") and not isinstance(value, typing.TypeVar) and name != "TYPE_CHECKING":
            yield f"{module.__name__}.{name}"


def test_every_public_name_of_the_package_stands_in_the_table() -> None:
    modules = list(public_modules())
    names = {name for module in modules for name in public_names(module)} | CANNOT_IMPORT
    assert len(names) > 1500
    assert sorted(name for name in names if row_of(name) is None) == []


def test_names_of_modules_that_cannot_be_imported_here_are_those_of_their_source() -> None:
    found = importlib.util.find_spec("determined")
    assert found is not None and found.origin is not None
    source = (Path(found.origin).parent / "transformers/_hf_callback.py").read_text()
    names = re.findall(r"^(?:def|class) (\w+)", source, re.MULTILINE)
    assert len(names) == 3
    assert {verdict_of(f"determined.transformers.{name}") for name in names} == {Verdict.PROVIDE}


def test_each_row_has_what_its_verdict_promises() -> None:
    rows = ROWS.values()
    assert [row for row in rows if (row.advice == "") != (row.verdict is Verdict.PROVIDE)] == []
    without = {verdict for verdict in Verdict for row in rows if row.verdict is verdict and row.served is None}
    assert without == {Verdict.CONVERT, Verdict.REVIEW}
    assert [row for row in rows if row.verdict is Verdict.REVIEW and row.served] == []


def test_a_name_below_a_class_has_the_verdict_of_the_class() -> None:
    assert verdict_of("determined.pytorch.DataLoader.get_data_loader") is Verdict.PROVIDE
    assert served_at("determined.pytorch.PyTorchTrial.train_batch") == (
        "trial_runtime.pytorch.deepspeed.DeepSpeedTrial.train_batch"
    )
    assert verdict_of("determined.experimental.client.Determined.get_experiment") is Verdict.PROVIDE
    assert verdict_of("determined.experimental.client.Determined.get_model") is Verdict.REFUSE


def test_names_below_a_module_that_is_provided_name_by_name_are_not_covered_by_it() -> None:
    assert verdict_of("determined.pytorch") is Verdict.PROVIDE
    assert row_of("determined.pytorch.made_up") is None
    assert verdict_of("determined.pytorch.made_up") is Verdict.REVIEW
    assert served_at("determined.pytorch.made_up") is None
    assert "keep determined installed" in advice_of("determined.pytorch.made_up")


def test_a_name_that_is_no_determined_name_has_no_row() -> None:
    assert row_of("torch.nn.Module") is None
    assert row_of("determinedly.pytorch") is None


def test_the_table_needs_neither_torch_nor_determined() -> None:
    code = "import sys, ds_migrate.names; print({'torch', 'determined', 'libcst'} & set(sys.modules))"
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert shown.strip() == "set()"


def test_names_of_classes_are_not_given_twice() -> None:
    rows = [row for module in ("trial_api", "library", "cluster") for row in rows_of(module)]
    repeated = {row.name for row in rows if sum(row.name == other.name for other in rows) > 1}
    assert all(not ROWS[name].covers for name in repeated)  # modules, whose names several groups provide


def rows_of(module: str) -> list[Row]:
    rows: list[Row] = importlib.import_module(f"ds_migrate.names.{module}").ROWS
    return rows


def test_what_the_table_calls_served_is_served() -> None:
    pytest.importorskip("torch")
    rows = ROWS.values()
    assert [row.name for row in rows if row.served is not None and not is_served(row.served)] == []
    assert {row.test for row in rows if not (ROOT / row.test).is_file()} == set()


def test_what_the_table_provides_was_determined_s_or_that_of_an_older_release() -> None:
    pytest.importorskip("determined")
    names = [row.name for row in ROWS.values() if row.verdict is Verdict.PROVIDE and row.name.startswith("determined.")]
    assert {name for name in names if not cannot_import(name) and not is_served(name)} == OLDER


def cannot_import(name: str) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in CANNOT_IMPORT)


def test_the_page_of_differences_has_the_table() -> None:
    found = importlib.util.spec_from_file_location("docs_names", ROOT / "docs/names.py")
    assert found is not None and found.loader is not None
    names = importlib.util.module_from_spec(found)
    found.loader.exec_module(names)
    page = names.PAGE.read_text(encoding="utf-8")
    assert page == names.with_table(page), "run: python docs/names.py"
    assert "`download_gcs_blob_with_backoff`" in page


def test_each_refused_name_explains_at_the_call_what_to_do_instead() -> None:
    pytest.importorskip("torch")
    errors = importlib.import_module("trial_runtime.errors")
    rows = [row for row in ROWS.values() if row.verdict is Verdict.REFUSE]
    assert len(rows) > 70
    for row in rows:
        assert row.served is not None
        target = found_at(row.served)
        if isinstance(target, ModuleType):  # of names that have rows of their own, elsewhere
            continue
        with pytest.raises(errors.NotProvidedError, match=re.escape(row.advice)):
            target("something")


def is_served(path: str) -> bool:
    """Return whether there is the module, or the name below one."""
    try:
        found_at(path)
    except AttributeError:
        return False
    return True


def found_at(path: str) -> Any:
    """Return the module, or what is below one. Raises AttributeError when there is neither."""
    parts = path.split(".")
    for count in range(len(parts), 0, -1):
        try:
            module = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        return functools.reduce(getattr, parts[count:], module)
    raise AttributeError(path)
