"""Run the fuzzers for some minutes and print what breaks: ``python -m fuzz --minutes 60 --seed 1`` in ``tests/``."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "codemod"))

from fuzz.cases import KINDS, make_case
from fuzz.properties import violations


def main() -> int:
    """Return 1 when a case breaks a property, else 0."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="how long (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="the first case (default: %(default)s)")
    parser.add_argument("--kind", choices=KINDS, action="append", help="what to try (default: everything in turn)")
    parser.add_argument("--keep", type=Path, help="a folder that gets the project of each case that breaks")
    arguments = parser.parse_args()
    kinds = arguments.kind or KINDS
    tried: Counter[str] = Counter()
    broken = 0
    end = time.monotonic() + 60 * arguments.minutes
    with tempfile.TemporaryDirectory() as folder:
        seed = arguments.seed
        while time.monotonic() < end:
            for kind in kinds:
                case = make_case(kind, seed)
                found = violations(case, Path(folder) / "project")
                tried[kind] += 1
                broken += bool(found)
                for violation in found:
                    print(f"{case}: {violation}", flush=True)
                if found and arguments.keep is not None:
                    violations(case, arguments.keep / f"{kind}-{seed}")
            seed += 1
    print(f"{sum(tried.values())} cases ({dict(tried)}), {broken} broke a property; the next seed is {seed}")
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main())
