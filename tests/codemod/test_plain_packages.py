"""Plain loops in packages on PyPI, which nobody wrote for this tool: it reads them all, and what it writes compiles."""

from __future__ import annotations

import ast
import shutil
import subprocess
from pathlib import Path

import pytest
from ds_migrate.files.discovery import discover
from ds_migrate.findings import Severity
from ds_migrate.options import Options
from ds_migrate.pipeline import migrate

# Where wheels have the same modules, they are taken: of an archive of sources, pip makes the metadata first.
PACKAGES = {
    "pytorch-metric-learning==2.9.0": "--only-binary",
    "timm==1.0.31": "--no-binary",  # a wheel lacks its tests, which have loops
    "torch-geometric==2.8.1": "--only-binary",
}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("package", "form"), PACKAGES.items(), ids=PACKAGES)
def test_whole_source_trees_are_read_to_the_end(package: str, form: str, tmp_path: Path) -> None:
    command = ["pip", "download", "-q", form, ":all:", "--no-deps", package]
    if shutil.which("pip") is None:
        pytest.skip("there is no pip")
    try:
        download = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("pip did not answer in 200 s")
    archives = [*tmp_path.glob("*.tar.gz"), *tmp_path.glob("*.whl")]
    if not archives:
        pytest.skip(f"cannot download {package}: {download.stderr.strip().splitlines()[-1:]}")
    if archives[0].suffix == ".whl":
        shutil.unpack_archive(archives[0], tmp_path / "tree", "zip")
    else:
        shutil.unpack_archive(archives[0], tmp_path / "tree", filter="data")
    report = migrate(discover([tmp_path / "tree"]), Options(plain=True))
    assert len(list(tmp_path.rglob("*.py"))) > 100
    for file in report.files:
        if file.to_write and file.after is not None:
            ast.parse(file.after)
    for _, finding in report.findings(Severity.BLOCKED):
        assert finding.code.startswith("DSM6") and finding.line and finding.message and finding.help
