"""The warning about files that several ranks write."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from distributed import run_ranks


def write_files(folder: Path) -> list[str]:
    """Return what a rank warns of, from either rank: whichever writes a file second."""
    import torch.distributed as dist
    from trial_runtime.plain import is_main_rank, rank_0_first
    from trial_runtime.plain._written_files import watch_written_files

    watch_written_files()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            with (folder / "log.txt").open("a") as file:
                file.write("loss")
        np.save(folder / "errors.npy", np.zeros(2))
        (folder / f"rank_{dist.get_rank()}.txt").write_text("")
        (folder / "data.lock").write_text("")
        with rank_0_first():
            (folder / "data.txt").write_text("")
        if is_main_rank():
            (folder / "best.txt").write_text("")
        dist.barrier()
        (folder / "best.txt").read_text()
    found: list[list[str]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(found, [f"{Path(one.filename).name}: {one.message}" for one in caught])
    return sorted(text for texts in found for text in texts)


def test_a_folder_that_is_gone_is_no_error_of_the_watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trial_runtime.plain._written_files import _Watch

    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setenv("RANK", "0")
    _Watch().note("log.txt")


def test_files_that_two_ranks_write_have_one_warning_each_at_the_line_of_the_script(tmp_path: Path) -> None:
    found = run_ranks(write_files, tmp_path)[0]
    errors, log = sorted(found, key=lambda text: f"{tmp_path}/log.txt" in text)  # either rank writes second
    assert f"both write {tmp_path}/errors.npy" in errors
    assert f"both write {tmp_path}/log.txt" in log
    assert all(text.startswith("test_plain_written_files.py: ranks ") for text in (errors, log))
