"""Print the table of ``docs/equivalence.md``: ``python benchmarks/equivalence.py``.

Train every fixture as the tests in ``tests/equivalence`` do, and print the largest absolute difference over all losses,
metrics, final parameters and buffers of all its runs: 1 and 2 ranks, ZeRO stages 0 and 1, gradients accumulated over 1
and 2 micro-batches, saved and resumed in the middle. Needs the extra ``test``; takes some minutes.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from ds_verify.compare import largest_gap  # noqa: E402
from ds_verify.record import Record  # noqa: E402
from equivalence.runs import Runs  # noqa: E402
from equivalence.scenario import NAMES, Case  # noqa: E402


def main() -> None:
    cases = {name: [Case(name, *options) for options in itertools.product((1, 2), (1, 2), (0, 1))] for name in NAMES}
    print(
        "| fixture | original: Determined or trial_runtime | trial_runtime: original or converted | values compared |"
    )
    print("|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(Path(folder), Path(folder) / "own")
        for name, every in cases.items():
            original, converted, values = [], [], 0
            for case in every:
                sides = (case.oracle, case.reference, case.candidate)
                oracle, reference, candidate = (reported(runs.get(scenario)) for scenario in sides)
                original.append(largest_gap(oracle, reference))
                converted.append(largest_gap(reference, candidate))
                values += sum(value.size for value in candidate.values.values())
            print(f"| `{name}` | {shown(max(original))} | {shown(max(converted))} | {values:,} |")


def reported(record: Record) -> Record:
    """Return losses, metrics, final parameters and buffers."""
    kinds = ("training", "window", "validation", "state")
    return Record({key: value for key, value in record.values.items() if key.kind in kinds})


def shown(gap: float) -> str:
    return "0 (bitwise)" if gap == 0.0 else f"{gap:.1e}"


if __name__ == "__main__":
    main()
