"""Run the GPU tests and write their results: ``python benchmarks/gpu.py [--out FILE]``.

This needs a CUDA device, torch, deepspeed, pytest, rich, libcst and ruamel.yaml, but no network and no compiler. The
repository's packages need not be installed: it sets ``PYTHONPATH``. The result (device, versions, each test with its
outcome, seconds and figures) is one small JSON file, by default ``benchmarks/results/gpu.json``.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGES = ("torch", "deepspeed", "numpy", "libcst")


def device() -> dict[str, Any]:
    """Return the name and memory in GiB of each GPU, and the CUDA version.

    Raises:
        SystemExit: there is no GPU.
    """
    import torch

    if not torch.cuda.is_available():
        raise SystemExit(f"torch {torch.__version__} finds no CUDA device; no test was run")
    properties = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return {
        "gpus": [f"{each.name}, {each.total_memory / 2**30:.0f} GiB" for each in properties],
        "cuda": torch.version.cuda,
    }


def outcomes(report: Path) -> list[dict[str, Any]]:
    """Return the tests of a JUnit report: name, outcome, seconds, recorded figures, and the end of a failure's text."""
    found = []
    for case in ET.parse(report).getroot().iter("testcase"):
        outcome, text = "passed", ""
        for child in case:
            if child.tag in ("failure", "error", "skipped"):
                outcome = "skipped" if child.tag == "skipped" else "failed"
                text = (child.text or child.get("message") or "")[-2000:]
        figures = {each.get("name"): each.get("value") for each in case.iter("property")}
        found.append(
            {
                "test": case.get("name"),
                "outcome": outcome,
                "seconds": round(float(case.get("time") or 0), 1),
                **({"figures": figures} if figures else {}),
                **({"text": text} if text else {}),
            }
        )
    return found


def main() -> int:
    """Run the tests; return 0 when all passed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/gpu.json")
    parser.add_argument("-k", default="", help="passed to pytest -k")
    options = parser.parse_args()
    machine = device()
    path = os.pathsep.join([str(ROOT / "codemod"), str(ROOT / "runtime"), os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        # addopts has options of plugins, and such a machine may have pytest alone.
        command = [
            sys.executable, "-m", "pytest", "-m", "gpu", "tests/gpu", "-p", "no:cacheprovider", "-q", "-o", "addopts=",
            "-o", "junit_family=xunit1", f"--junitxml={report}", "-k", options.k,
        ]  # fmt: skip
        code = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, check=False).returncode
        tests = outcomes(report) if report.is_file() else []
    result = {
        **machine,
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        "passed": sum(test["outcome"] == "passed" for test in tests),
        "failed": sum(test["outcome"] == "failed" for test in tests),
        "skipped": sum(test["outcome"] == "skipped" for test in tests),
        "tests": tests,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"{result['passed']} passed, {result['failed']} failed, {result['skipped']} skipped: {options.out}")
    return code


if __name__ == "__main__":
    sys.exit(main())
