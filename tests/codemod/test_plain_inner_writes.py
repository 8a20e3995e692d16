"""Files that a program writes inside of an expression, which each rank wrote at the same time."""

from __future__ import annotations

from pathlib import Path

import pytest
from ds_migrate.findings import Severity
from plain_loops import HEADER, LOOP, convert, run

IMPORTS = """\
import os
import shutil
import cv2
import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
frame = pd.DataFrame()
paths = ['a.png']
"""
WRITTEN = "every rank writes this file, at the same time"


@pytest.mark.parametrize(
    ("line", "converted"),
    [
        ("_ = shutil.copy('a', 'b')", "_ = shutil.copy('a', 'b') if is_main_rank() else None"),
        ("out = frame.to_csv('a.csv')", "out = frame.to_csv('a.csv') if is_main_rank() else None"),
        (
            "pd.concat([frame, frame]).sort_values('a').to_csv('a.csv')",
            "if is_main_rank():\n    pd.concat([frame, frame]).sort_values('a').to_csv('a.csv')",
        ),
        (
            "frame.loc[frame['a'].isin([1]), :].to_csv('a.csv')",
            "if is_main_rank():\n    frame.loc[frame['a'].isin([1]), :].to_csv('a.csv')",
        ),
        ("box.last = plt.savefig('a.png')", "box.last = plt.savefig('a.png') if is_main_rank() else None"),
        ("[os.remove(p) for p in paths]", "[(os.remove(p) if is_main_rank() else None) for p in paths]"),
        ("[cv2.imwrite(p, 0) for p in paths]", "[(cv2.imwrite(p, 0) if is_main_rank() else None) for p in paths]"),
        (
            "os.path.exists('a') and os.remove('a')",
            "os.path.exists('a') and (os.remove('a') if is_main_rank() else None)",
        ),
        (
            "print(np.save('a.npy', 0))",
            "text = np.save('a.npy', 0) if is_main_rank() else None\nif is_main_rank():\n    print(text)",
        ),
        (
            "def keep(x):\n    return np.save('a.npy', x)\nkeep(0)",
            "def keep(x):\n    return np.save('a.npy', x) if is_main_rank() else None\nkeep(0)",
        ),
    ],
)
def test_rank_0_alone_writes_where_the_others_miss_nothing_but_the_file(
    line: str, converted: str, tmp_path: Path
) -> None:
    report = run(tmp_path, train=f"{IMPORTS}{HEADER}{LOOP}{line}\n")
    assert (report.files[0].after or b"").decode().split("engine.step()\n")[-1].startswith(f"{converted}\n")
    assert not list(report.findings(Severity.REVIEW))


@pytest.mark.parametrize(
    "line",
    [
        "assert cv2.imwrite('a.png', 0)",
        "is_there = cv2.imwrite('a.png', 0)\nif not is_there:\n    raise OSError",
        "path = shutil.make_archive('a', 'zip')\nprint(path)",
        "print(cv2.imwrite('a.png', 0))",
        "_ = np.save('a.npy', model(x).detach())",
    ],
)
def test_a_write_whose_result_or_arguments_all_ranks_need_is_for_review(line: str, tmp_path: Path) -> None:
    report = run(tmp_path, train=f"{IMPORTS}{HEADER}{LOOP}{line}\n")
    assert [f.message for _, f in report.findings(Severity.REVIEW)] == [WRITTEN]


@pytest.mark.parametrize(
    "line",
    [
        "text = frame.to_csv(index=False)",
        "rank == 0 and np.save('a.npy', 0)",
        "np.save('a.npy', 0) if rank == 0 else None",
    ],
)
def test_a_text_is_made_and_a_condition_on_the_rank_stays(line: str, tmp_path: Path) -> None:
    assert f"{line}\n" in convert(tmp_path, f"{IMPORTS}rank = 0\n{HEADER}{LOOP}{line}\n")
