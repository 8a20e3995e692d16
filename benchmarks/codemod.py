"""Measure what a run of the codemod costs: on trials, on trees with and without trials, and by package.

    python benchmarks/codemod.py [--files 2000] [--trials 20]

Trees are generated: modules of ordinary code, and copies of a fixture's trial. The command is measured on each (wall
time, CPU time of all its processes, memory of the largest one; best of nine by CPU time). For comparison, so are a
Python that only imports ``argparse`` and ``json``, and the lower bound: a process that reads every file, searches it
for the words, and parses and prints those that have them with libcst, once. The split by package is that of one more
process, under a profiler, which makes all of it slower.
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import json
import os
import platform
import pstats
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TRIAL = (ROOT / "fixtures/schedule_clip_reducers/before/model_def.py").read_text()

LOWER_BOUND = """
import argparse, json, os, sys
found, waiting = [], [sys.argv[1]]
while waiting:
    with os.scandir(waiting.pop()) as entries:
        for entry in entries:
            if entry.is_dir():
                waiting.append(entry.path)
            elif entry.name.endswith(".py"):
                descriptor = os.open(entry.path, os.O_RDONLY)
                data = os.read(descriptor, os.fstat(descriptor).st_size)
                os.close(descriptor)
                if b"determined" in data or b"Trial" in data:
                    found.append(data)
if found:
    import libcst
    for data in found:
        libcst.parse_module(data).bytes
"""

_FUNCTION = '''

def {name}({args}):
    """{doc}"""
    total = {number}
    for index, value in enumerate({args}):
        if value is None or index % {number} == 0:
            continue
        total += len(str(value)) * {number}
    return {{"total": total, "name": "{name}", "size": [{args}]}}
'''


def write_tree(folder: Path, files: int, trials: int) -> int:
    """Write ``files`` modules, ``trials`` of them with a trial; return the size in bytes."""
    draw = random.Random(1)
    words = ["alpha", "beta", "layer", "tensor", "optimizer", "schedule", "batch", "epoch", "loader", "metric"]
    size = 0
    for number in range(files):
        path = folder / f"package_{number % 40}" / f"module_{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        if number < trials:
            text = TRIAL.replace("class SegmentTrial", f"class Segment{number}Trial")
        else:
            text = "import os\nimport sys\n" + "".join(
                _FUNCTION.format(
                    name=f"{draw.choice(words)}_{i}",
                    args=draw.choice(words),
                    doc=" ".join(draw.choices(words, k=9)),
                    number=draw.randint(2, 99),
                )
                for i in range(draw.randint(10, 60))
            )
        path.write_text(text)
        size += len(text)
    return size


@dataclass(frozen=True)
class Cost:
    """The cost of a command and the processes it waits for; ``peak_mib`` is that of the largest."""

    wall_s: float
    cpu_s: float
    peak_mib: float


def measured(command: Sequence[str], runs: int = 9) -> Cost:
    """Return the run with the least CPU time. The first one also compiles what it imports."""
    return min((_run(command) for _ in range(runs)), key=lambda cost: cost.cpu_s)


def _run(command: Sequence[str]) -> Cost:
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    quiet = [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_WRONLY, 0) for stream in (1, 2)]
    start = time.perf_counter()
    process = os.posix_spawnp(command[0], command, environment, file_actions=quiet)
    _, status, usage = os.wait4(process, 0)
    wall = time.perf_counter() - start
    if status:
        raise RuntimeError(f"{command} ended with {os.waitstatus_to_exitcode(status)}")
    return Cost(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


_NOTHING = "import argparse, json"


def seconds_by_package(folder: str) -> dict[str, float]:
    """Preview the folder in this process under a profiler; return the CPU seconds spent in the code of each package."""
    from ds_migrate.cli import main as preview

    profile = cProfile.Profile(time.process_time)
    with (
        Path(os.devnull).open("w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        profile.runcall(preview, [folder, "--jobs", "1"])
    spent: dict[str, float] = defaultdict(float)
    stats: Any = pstats.Stats(profile)
    for (file, _, _), (_, _, own, _, callers) in stats.stats.items():
        if file == "~":  # compiled code counts for its caller
            for (caller, _, _), (_, _, part, _) in callers.items():
                spent[_package(caller)] += part
        else:
            spent[_package(file)] += own
    return dict(sorted(spent.items(), key=lambda item: -item[1]))


def _package(file: str) -> str:
    path = Path(file)
    for package in ("ds_migrate", "libcst", "rich"):
        if package in path.parts:
            below = path.parts[path.parts.index(package) + 1 :]
            return f"{package}.{Path(below[0]).stem}" if package == "ds_migrate" else package
    return "imports" if "importlib" in file else "other libraries"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    parser.add_argument("--profile", metavar="FOLDER", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.profile:
        print(json.dumps(seconds_by_package(arguments.profile)))
        return
    figures: dict[str, Any] = {"python": platform.python_version(), "cores": os.cpu_count()}
    with tempfile.TemporaryDirectory() as folder:
        compare(Path(folder), arguments.files, arguments.trials, figures)
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(figures, indent=2) + "\n")


def compare(folder: Path, files: int, trials: int, figures: dict[str, Any]) -> None:
    """Print the tables, and add their figures to ``figures``."""
    print(f"{'run':<34}{'files':>7}{'trials':>8}{'MB':>7}{'wall s':>9}{'CPU s':>8}{'MiB':>7}")
    cases = {"nothing": (0, 0), "one trial": (1, 1), "trials": (trials, trials)}
    cases |= {"tree": (files, 0), "tree with trials": (files, trials)}
    sizes = {}
    for name, counts in cases.items():
        (folder / name).mkdir()
        sizes[name] = write_tree(folder / name, *counts)

    def run(name: str, case: str, *command: str) -> Cost:
        cost = measured([sys.executable, *command, str(folder / case)])
        figures[f"{name}, {case}"] = {
            "files": cases[case][0], "trials": cases[case][1], "bytes": sizes[case], **asdict(cost)
        }  # fmt: skip
        size = f"{cases[case][0]:>7}{cases[case][1]:>8}{sizes[case] / 1e6:>7.1f}"
        print(f"{f'{name}, {case}':<34}{size}{cost.wall_s:>9.3f}{cost.cpu_s:>8.3f}{cost.peak_mib:>7.0f}", flush=True)
        return cost

    python = run("argparse and json", "nothing", "-c", _NOTHING)
    alone = {name: run("ds-migrate --jobs 1", name, "-m", "ds_migrate", "--jobs", "1") for name in cases}
    shared = {name: run("ds-migrate", name, "-m", "ds_migrate") for name in ("tree", "tree with trials")}
    bounds = {name: run("lower bound", name, "-c", LOWER_BOUND) for name in shared}

    more = (alone["trials"].cpu_s - alone["one trial"].cpu_s) / (trials - 1)
    figures["one more trial"] = {"cpu_s": more, "bytes": len(TRIAL)}
    print(f"\none more trial of {len(TRIAL) / 1e3:.1f} kB: {more * 1e3:.0f} ms of CPU")
    for name, cost in shared.items():
        for other, base in {"argparse and json": python, "the lower bound": bounds[name]}.items():
            wall, cpu = cost.wall_s / base.wall_s, cost.cpu_s / base.cpu_s
            one = alone[name].cpu_s / base.cpu_s
            print(f"{name}: {wall:.1f} times {other}; in CPU time {cpu:.1f} times, with one process {one:.1f} times")

    command = [sys.executable, __file__, "--profile", str(folder / "tree with trials")]
    split: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    figures["packages"] = split
    print("\nCPU seconds by package under a profiler, tree with trials:")
    for package, seconds in split.items():
        print(f"  {package:<30}{seconds:.3f}")
    print(f"  {'total':<30}{sum(split.values()):.3f}")


if __name__ == "__main__":
    main()
