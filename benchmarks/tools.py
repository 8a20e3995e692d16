"""The codemod side by side with other tools on the same generated trees, and with what cannot be undercut.

    python benchmarks/tools.py [--files 2000] [--bin FOLDER] [--limit 300]

``--bin`` is where the other tools are, for example the ``bin`` of a virtual environment:
``python3 -m venv tools && tools/bin/pip install ruff ast-grep-cli torchfix django-upgrade``. One that is not there is
said and left out. Each runs as its documents say, without writing: ruff's ``UP`` rules, an ast-grep pattern, TorchFix,
``django-upgrade --check``, libcst's own runner with a command that does nothing. They do other work than ds-migrate, so
the table tells what a user waits for, not which is written better.

Times are those of the fastest of five runs, memory that of its largest process. Two rows are no tools: a Python
process that only imports ``argparse`` and ``json``, and the limit, a Python process that imports ``argparse`` and
``json``, reads every file, searches it for the words, and parses and prints with libcst, once, each file that has
them.
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

from codemod import LIMIT, write_tree


@dataclass(frozen=True)
class Tool:
    """``command`` makes the command line for a folder of Python files; None where the tool is not installed."""

    name: str
    command: Callable[[Path], list[str]] | None


@dataclass
class Row:
    """Seconds of a run; None where it was not to be had, or took longer than the limit."""

    tool: str
    wall_s: float | None = None
    cpu_s: float | None = None
    peak_mib: float | None = None
    said: str = ""


def tools(folder: Path | None) -> Iterator[Tool]:
    def found(name: str) -> str | None:
        return shutil.which(name, path=str(folder)) if folder else shutil.which(name)

    ruff, sg, torchfix, django = map(found, ("ruff", "ast-grep", "torchfix", "django-upgrade"))
    python = found("python") or sys.executable
    yield Tool("argparse, json", lambda _: [sys.executable, "-c", "import argparse, json"])
    yield Tool("limit", lambda tree: [sys.executable, "-c", LIMIT, str(tree)])
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
    """The best of five runs; of one, where that takes more than ten seconds."""
    if tool.command is None:
        return Row(tool.name, said="not installed")
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
    """One run; without figures where it took longer than ``limit`` seconds and was ended, its workers included."""
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
        return Row(tool.name, said=f"more than {limit:.0f} s")
    return Row(tool.name, wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def table(title: str, rows: list[Row]) -> Iterator[str]:
    """Markdown: each tool, and how many times as long as ds-migrate and as the limit it takes."""
    by_name = {row.tool: row.wall_s for row in rows}
    yield f"\n{title}\n"
    yield "| tool | wall s | CPU s | MiB | × ds-migrate | × limit |"
    yield "|---|---|---|---|---|---|"
    for row in rows:
        if row.wall_s is None:
            yield f"| {row.tool} | {row.said} | | | | |"
            continue
        ratios = [f"{row.wall_s / base:.1f}" if (base := by_name[name]) else "" for name in ("ds-migrate", "limit")]
        figures = f"{row.wall_s:.3f} | {row.cpu_s:.3f} | {row.peak_mib:.0f}"
        yield f"| {row.tool} | {figures} | {' | '.join(ratios)} |"


def summary(trees: dict[str, list[Row]]) -> Iterator[str]:
    """Markdown: all trees side by side, seconds that a user waits and, in brackets, how many times the limit's."""
    yield "\n| tool | " + " | ".join(trees) + " |"
    yield "|---" * (len(trees) + 1) + "|"
    limits = [next((row.wall_s for row in rows if row.tool == "limit"), None) for rows in trees.values()]
    for of_tool in zip(*trees.values(), strict=True):
        cells = [
            row.said if row.wall_s is None else f"{row.wall_s:.2f} ({row.wall_s / limit:.1f})" if limit else ""
            for row, limit in zip(of_tool, limits, strict=True)
        ]
        yield f"| {of_tool[0].tool} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, nargs="+", default=[2000], help="sizes of the trees (default: 2000)")
    parser.add_argument("--bin", type=Path, help="folder with the other tools (default: PATH)")
    parser.add_argument("--limit", type=float, default=300, help="seconds that a run may take (default: 300)")
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
