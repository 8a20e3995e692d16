"""Real input that nobody here wrote: model-hub 0.36.0, with two hard PyTorchTrial base classes among its files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ds_migrate.cli import main
from guarantees import assert_guaranteed, assert_stable

REQUIREMENT = "model-hub==0.36.0"
CONVERTED = Path("model_hub/huggingface/_trial.py")
BLOCKED = Path("model_hub/mmdetection/_trial.py")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked wheel. Where it cannot be had the tests are skipped, but never on CI."""
    folder = tmp_path_factory.mktemp("model_hub")
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), REQUIREMENT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        reason = f"{REQUIREMENT} could not be downloaded: {done.stderr.strip()[-300:]}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    with zipfile.ZipFile(wheels[0]) as wheel:
        wheel.extractall(folder / "unpacked")
    return folder / "unpacked"


@pytest.fixture
def copy(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(package, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    return tmp_path / "copy"


def report(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = main(["--format", "json", *options, "."])
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    schema = json.loads(files("ds_migrate.report").joinpath("schema.json").read_text("utf-8"))
    jsonschema.validate(printed, schema)
    return code, printed


def contents(folder: Path) -> dict[str, bytes]:
    found = (p for p in folder.rglob("*") if p.is_file() and ".ds-migrate" not in p.parts)
    return {str(p.relative_to(folder)): p.read_bytes() for p in found}


def statuses(printed: dict[str, Any]) -> dict[str, str]:
    return {t["name"]: t["status"] for file in printed["files"] for t in file["trials"]}


def test_both_base_classes_are_found_and_distinguished(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(copy)
    code, printed = report(capsys)
    assert code == 0
    assert statuses(printed) == {"BaseTransformerTrial": "converted", "MMDetTrial": "blocked"}
    assert printed["summary"]["errors"] == 0
    assert contents(copy) == before


def test_what_is_blocked_has_a_line_a_reason_and_a_way_forward(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    _, printed = report(capsys)
    blocked = [(file, f) for file in printed["files"] for f in file["findings"] if f["severity"] == "blocked"]
    assert {file["path"] for file, _ in blocked} >= {str(BLOCKED)}
    for file, finding in blocked:
        lines = (copy / file["path"]).read_text().splitlines()
        assert file["status"] == "blocked"
        assert 1 <= finding["line"] <= len(lines)
        assert lines[finding["line"] - 1].strip()
        assert finding["message"] and finding["help"]
    reasons = " ".join(finding["message"] for _, finding in blocked)
    for expected in ("auto_zero_grads=False", "_auto_amp"):
        assert expected in reasons


def test_check_and_write_report_that_work_remains(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(capsys, "--check")[0] == 1
    before = contents(copy)
    code, _ = report(capsys, "--write")
    assert code == 1
    after = contents(copy)
    changed = {name for name in after if after[name] != before.get(name)}
    assert changed == {str(CONVERTED), str(CONVERTED.with_name("ds_config.json"))}
    assert_guaranteed(before[str(CONVERTED)], after[str(CONVERTED)])
    code, printed = report(capsys, "--check")
    assert code == 1
    assert statuses(printed) == {"BaseTransformerTrial": "already-deepspeed", "MMDetTrial": "blocked"}


def test_the_converted_base_class_alone_is_settled(copy: Path) -> None:
    assert main(["--write", str(CONVERTED.parent)]) == 0
    assert_stable(copy / CONVERTED.parent, CONVERTED.name)
