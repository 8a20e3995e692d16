"""Write the table of docs/reliability.md: each promise, the tests that hold it, and the number of cases that they try.

``python benchmarks/reliability.py`` counts the cases by collecting the tests, and writes the table;
``python benchmarks/reliability.py --run`` runs them all first and writes nothing when one fails.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/reliability.md"
ROWS = ROOT / "benchmarks/reliability.txt"


def main() -> int:
    """Return 0 when the table is written."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", action="store_true", help="run the tests, the slow ones too, before counting them")
    arguments = parser.parse_args()
    promises = read_promises(ROWS.read_text(encoding="utf-8"))
    tests = sorted({test for _, found in promises for test in found})
    if arguments.run and subprocess.run([*_pytest(), "-q", *tests], cwd=ROOT, check=False).returncode:
        return 1
    counts = count_cases(tests)
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), table(promises, counts)), encoding="utf-8")
    return 0


def read_promises(text: str) -> list[tuple[str, list[str]]]:
    """Return (promise, tests) of a file with one promise a line, the tests that hold it indented below."""
    promises: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith("    "):
            promises[-1][1].append(line.strip())
        elif line and not line.startswith("#"):
            promises.append((line, []))
    return promises


def count_cases(tests: list[str]) -> Counter[str]:
    """Return the number of cases of each test (``file::function``, or a file), as pytest collects them.

    A test that tries several seeds in one case counts each: its file has ``CASES``, the seeds of one kind.
    """
    done = subprocess.run(
        [*_pytest(), "--collect-only", "-q", *tests], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found = [line for line in done.stdout.splitlines() if "::" in line]
    counts: Counter[str] = Counter()
    for test in tests:
        cases = [line for line in found if re.fullmatch(rf"{re.escape(test)}(\[.*\]|::.*)?", line)]
        counts[test] = len(cases)
        seeds = re.search(r"^CASES = (\d+)", (ROOT / test.partition("::")[0]).read_text("utf-8"), re.M)
        if seeds is not None and "no_case_breaks" in test:
            counts[test] = int(seeds[1]) * len({line.partition("[")[2].partition("-")[2] for line in cases})
    return counts


def table(promises: list[tuple[str, list[str]]], counts: Counter[str]) -> str:
    """Return the table in Markdown."""
    rows = ["| promise | held by | cases |", "|---|---|---|"]
    for promise, tests in promises:
        names = "<br>".join(f"`{test.removeprefix('tests/')}`" for test in tests)
        rows.append(f"| {promise} | {names} | {sum(counts[test] for test in tests)} |")
    return "\n".join(rows)


def with_table(page: str, rows: str) -> str:
    """Return the page with another table."""
    return re.sub(r"(<!-- made by .*? -->\n).*?(<!-- end -->)", lambda m: f"{m[1]}\n{rows}\n\n{m[2]}", page, flags=re.S)


def _pytest() -> list[str]:
    return [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", "slow or not slow"]


if __name__ == "__main__":
    sys.exit(main())
