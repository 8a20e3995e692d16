"""What a run of the codemod costs: on one trial, and on trees with and without trials, split by stage.

    python benchmarks/codemod.py [--files 2000] [--trials 20]

Trees are generated: modules of ordinary code, and copies of the fixtures' trials. Each tree is measured in a process of
its own (wall, CPU, peak memory, best of three), the split in one more.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TRIAL = (ROOT / "fixtures/schedule_clip_reducers/before/model_def.py").read_text()

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
    """Write ``files`` modules, ``trials`` of them with a trial; returns the size in bytes."""
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


def measured(folder: Path) -> dict[str, float]:
    """A preview of the folder in a process of its own: the best of three."""
    best: dict[str, float] = {}
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        start = time.perf_counter()
        command = [sys.executable, "-c", _CHILD, str(folder)]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, env={**os.environ, "PYTHONHASHSEED": "0"})
        wall = time.perf_counter() - start
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        if not best or cpu < best["cpu_s"]:
            best = {"wall_s": wall, "cpu_s": cpu, "peak_mib": float(output.stdout.split()[-1]) / 1024}
    return best


# The command line itself, its patch thrown away; then the process's own peak.
_CHILD = """
import os, resource, sys
from ds_migrate.cli import main
out = os.dup(1)
null = os.open(os.devnull, os.O_WRONLY)
os.dup2(null, 1); os.dup2(null, 2)
main([sys.argv[1]])
sys.stdout.flush()
os.write(out, b"%d\\n" % resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def stages(folder: Path) -> dict[str, float]:
    """CPU seconds by stage, in this process, imports not counted."""
    from ds_migrate import convert, discover, engine, options, project
    from ds_migrate.report import patch
    from ds_migrate.syntax import source

    spent: dict[str, float] = defaultdict(float)

    def timed(owner: Any, name: str, stage: str) -> None:
        inner: Callable[..., Any] = getattr(owner, name)

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            start = time.process_time()
            try:
                return inner(*args, **kwargs)
            finally:
                spent[stage] += time.process_time() - start

        setattr(owner, name, wrapper)

    timed(source.SourceFile, "__init__", "parse and round-trip check")
    timed(convert.Conversion, "model", "model (parse included)")
    timed(convert.Conversion, "plan", "rules, render, check")
    timed(project.Project, "__init__", "project (read, search, ast)")
    start = time.process_time()
    found = discover.discover([folder])
    spent["discover"] = time.process_time() - start
    start = time.process_time()
    report = engine.migrate(found, options.Options())
    spent["engine, all of it"] = time.process_time() - start
    start = time.process_time()
    patch.patch(report, folder)
    spent["patch"] = time.process_time() - start
    return dict(spent)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    arguments = parser.parse_args()
    figures: dict[str, Any] = {"python": platform.python_version(), "cores": os.cpu_count()}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        cases = {"no file": (0, 0), "one trial": (1, 1), "no trial": (arguments.files, 0)}
        cases["trials"] = (arguments.files, arguments.trials)
        print(f"{'tree':<12}{'files':>7}{'trials':>8}{'MB':>7}{'wall s':>9}{'CPU s':>8}{'MiB':>7}")
        for name, (files, trials) in cases.items():
            tree = root / name.replace(" ", "_")
            tree.mkdir()
            size = write_tree(tree, files, trials)
            row = measured(tree)
            figures[name] = {"files": files, "trials": trials, "bytes": size, **row}
            cost = f"{row['wall_s']:>9.3f}{row['cpu_s']:>8.3f}{row['peak_mib']:>7.0f}"
            print(f"{name:<12}{files:>7}{trials:>8}{size / 1e6:>7.1f}{cost}")
        figures["stages"] = stages(root / "trials")
        print("\nCPU seconds by stage, tree with trials:")
        for stage, seconds in figures["stages"].items():
            print(f"  {stage:<30}{seconds:.3f}")
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
