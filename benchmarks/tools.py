"""Measure the codemod, other tools and a lower bound on the same generated trees.

    python benchmarks/tools.py [--files 2000] [--bin FOLDER] [--limit 300]

``--bin`` is the folder with the other tools, for example the ``bin`` of a virtual environment:
``python3 -m venv tools && tools/bin/pip install ruff ast-grep-cli torchfix django-upgrade``. A missing tool is reported
as not installed. Each runs as documented, without writing: ruff's ``UP`` rules, an ast-grep pattern, TorchFix,
``django-upgrade --check``, and libcst's own runner with a command that does nothing. They do other work than
ds-migrate, so the table compares waiting times, not implementations.

Times are those of the fastest of five runs, memory is that of its largest process. Two rows are not tools: a Python
process that only imports ``argparse`` and ``json``, and the lower bound, a Python process that also reads every file,
searches it for the words, and parses and prints those that have them with libcst, once.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from codemod import LOWER_BOUND, write_tree


@dataclass(frozen=True)
class Tool:
    """A tool. ``command`` returns the command line for a folder of Python files; None where the tool is missing."""

    name: str
    command: Callable[[Path], list[str]] | None


@dataclass
class Row:
    """The cost of a run; None where the tool is missing or reached the time limit, which ``note`` reports."""

    tool: str
    wall_s: float | None = None
    cpu_s: float | None = None
    peak_mib: float | None = None
    note: str = ""


def tools(folder: Path | None) -> Iterator[Tool]:
    def found(name: str) -> str | None:
        return shutil.which(name, path=str(folder)) if folder else shutil.which(name)

    ruff, sg, torchfix, django = map(found, ("ruff", "ast-grep", "torchfix", "django-upgrade"))
    python = found("python") or sys.executable
    yield Tool("argparse, json", lambda _: [sys.executable, "-c", "import argparse, json"])
    yield Tool("lower bound", lambda tree: [sys.executable, "-c", LOWER_BOUND, str(tree)])
    yield Tool("ds-migrate", lambda tree: [sys.executable, "-m", "ds_migrate", str(tree)])
    yield Tool("ds-migrate --jobs 1", lambda tree: [sys.executable, "-m", "ds_migrate", "--jobs", "1", str(tree)])
    rules = ["check", "--isolated", "--no-cache", "--select", "UP", "--quiet", "--exit-zero"]
    yield Tool("ruff", ruff and (lambda tree: [ruff, *rules, str(tree)]))
    pattern = ["run", "--lang", "python", "--pattern", "context.wrap_model($M)", "--rewrite", "f($M)"]
    yield Tool("ast-grep", sg and (lambda tree: [sg, *pattern, str(tree)]))
    yield Tool("torchfix", torchfix and (lambda tree: [torchfix, "--select", "ALL", str(tree)]))
    check = ["--check", "--target-version", "5.0"]
    yield Tool("django-upgrade", django and (lambda tree: [django, *check, *map(str, sorted(tree.rglob("*.py")))]))
    codemod = ["-m", "libcst.tool", "codemod", "noop.NOOPCommand", "--no-format", "-u", "1"]
    there = subprocess.run([python, "-c", "import libcst"], capture_output=True, check=False).returncode == 0
    yield Tool("libcst codemod", (lambda tree: [python, *codemod, str(tree)]) if there else None)


def timed(tool: Tool, tree: Path, limit: float) -> Row:
    """Return the best of five runs, or of one where that takes more than ten seconds."""
    if tool.command is None:
        return Row(tool.name, note="not installed")
    best = Row(tool.name)
    for _ in range(5):
        row = _run(tool, tree, limit)
        if row.wall_s is None:
            return row
        if best.wall_s is None or row.wall_s < best.wall_s:
            best = row
        if row.wall_s > 10:
            break
    return best


def _run(tool: Tool, folder: Path, limit: float) -> Row:
    """Run once. After ``limit`` seconds the run and its workers are killed, and the row has no figures."""
    assert tool.command is not None
    command, quiet = tool.command(folder), subprocess.DEVNULL
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    late: list[int] = []

    def end(*_: object) -> None:
        late.append(process.pid)
        os.killpg(process.pid, signal.SIGKILL)

    signal.signal(signal.SIGALRM, end)
    start = time.perf_counter()
    process = subprocess.Popen(command, cwd=folder, env=environment, stdout=quiet, stderr=quiet, start_new_session=True)
    signal.setitimer(signal.ITIMER_REAL, limit)
    _, status, usage = os.wait4(process.pid, 0)
    signal.setitimer(signal.ITIMER_REAL, 0)
    wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if late:
        return Row(tool.name, note=f"more than {limit:.0f} s")
    return Row(tool.name, wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def table(title: str, rows: list[Row]) -> Iterator[str]:
    """Yield a Markdown table: each tool, with the ratios of its time to ds-migrate's and to the lower bound."""
    by_name = {row.tool: row.wall_s for row in rows}
    yield f"\n{title}\n"
    yield "| tool | wall s | CPU s | MiB | × ds-migrate | × lower bound |"
    yield "|---|---|---|---|---|---|"
    for row in rows:
        if row.wall_s is None:
            yield f"| {row.tool} | {row.note} | | | | |"
            continue
        ratios = [
            f"{row.wall_s / base:.1f}" if (base := by_name[name]) else "" for name in ("ds-migrate", "lower bound")
        ]
        figures = f"{row.wall_s:.3f} | {row.cpu_s:.3f} | {row.peak_mib:.0f}"
        yield f"| {row.tool} | {figures} | {' | '.join(ratios)} |"


def summary(trees: dict[str, list[Row]]) -> Iterator[str]:
    """Yield a Markdown table of all trees: wall-clock seconds and, in brackets, the ratio to the lower bound."""
    yield "\n| tool | " + " | ".join(trees) + " |"
    yield "|---" * (len(trees) + 1) + "|"
    bounds = [next((row.wall_s for row in rows if row.tool == "lower bound"), None) for rows in trees.values()]
    for of_tool in zip(*trees.values(), strict=True):
        cells = [
            row.note if row.wall_s is None else f"{row.wall_s:.2f} ({row.wall_s / bound:.1f})" if bound else ""
            for row, bound in zip(of_tool, bounds, strict=True)
        ]
        yield f"| {of_tool[0].tool} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, nargs="+", default=[2000], help="sizes of the trees (default: 2000)")
    parser.add_argument("--bin", type=Path, help="folder with the other tools (default: PATH)")
    parser.add_argument("--limit", type=float, default=300, help="time limit of a run in seconds (default: 300)")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    arguments = parser.parse_args()
    figures: dict[str, object] = {"python": platform.python_version(), "cores": os.cpu_count()}
    trees: dict[str, list[Row]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for files in arguments.files:
            for trials in (0, files // 100):
                tree = Path(folder, f"{files}-{trials}")
                size = write_tree(tree, files, trials)
                rows = [timed(tool, tree, arguments.limit) for tool in tools(arguments.bin)]
                title = f"{files:,} files ({size / 1e6:.0f} MB), {trials:,} with a trial"
                print(*table(title, rows), sep="\n", flush=True)
                trees[title] = rows
                figures[title] = [asdict(row) for row in rows]
    print(*summary(trees), sep="\n")
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
