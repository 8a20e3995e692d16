"""Run a function on several gloo processes, so that a failure on one rank fails the test and never hangs it."""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from forked_python import forked_python, start_forked
from trial_runtime._ranks import Process, RankProcesses, rank_variables, without_ranks

_SECONDS_TO_FAIL_TOO = 5


def run_ranks(function: Callable[..., Any], *args: Any, size: int = 2, timeout: float = 240) -> list[Any]:
    """Return what ``function(*args)`` returns on each of ``size`` ranks, ordered by rank.

    The ranks are new processes with torch.distributed up (gloo, rendezvous in a file, so no port can clash). What they
    start by ``sys.executable`` is forked, as they are.

    Args:
        function: importable by name from its module (a top-level function of a test file).
        args: picklable.
        size: number of ranks.
        timeout: seconds for all of it.

    Raises:
        AssertionError: with the tracebacks, when a rank fails or the time is over. All ranks are ended.
    """
    with tempfile.TemporaryDirectory(prefix="ranks-") as name:
        folder = Path(name)
        module = sys.modules[function.__module__]
        # The module must be imported before its objects among the arguments can be read.
        job = (str(module.__file__), function.__qualname__, list(sys.path), pickle.dumps(args))
        (folder / "job").write_bytes(pickle.dumps(job))
        ranks = RankProcesses(lambda rank: _start(folder, rank, size), size)
        try:
            _wait(ranks, timeout)
            return _results(folder, ranks)
        finally:
            ranks.kill()


def _wait(ranks: RankProcesses, timeout: float) -> None:
    """Wait until all ranks have ended; once one has failed, give the others a moment to fail in their own words."""
    deadline, failed = time.monotonic() + timeout, False
    while None in (codes := ranks.codes()) and time.monotonic() < deadline:
        if not failed and any(codes):
            deadline, failed = min(deadline, time.monotonic() + _SECONDS_TO_FAIL_TOO), True
        time.sleep(0.01)  # nothing depends on how long


def _results(folder: Path, ranks: RankProcesses) -> list[Any]:
    results, problems = [], []
    for rank, code in enumerate(ranks.codes()):
        outcome = folder / f"result{rank}"
        good, value = False, "still running" if code is None else f"ended with {code}"
        if outcome.exists():
            good, value = pickle.loads(outcome.read_bytes())
        if not good:
            log = (folder / f"log{rank}").read_text(errors="replace")[-3000:]
            problems.append(f"--- rank {rank}: {value}\n{log}")
        results.append(value)
    assert not problems, "a rank failed, or time was over (the others were ended)\n" + "\n".join(problems)
    return results


def _start(folder: Path, rank: int, size: int) -> Process:
    environment = {**without_ranks(os.environ), **rank_variables(rank, size)}
    environment |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [__file__, str(folder), str(rank), str(size), forked_python()]
    return start_forked(command, environment=environment, directory=Path.cwd(), log=folder / f"log{rank}")


def _main(folder: Path, rank: int, size: int, python: str) -> None:
    sys.executable = python
    outcome = _do(folder, rank, size)
    partial = folder / f"partial{rank}"
    partial.write_bytes(pickle.dumps(outcome))
    partial.replace(folder / f"result{rank}")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0 if outcome[0] else 1)  # not through destructors that wait for ranks which are gone


def _do(folder: Path, rank: int, size: int) -> tuple[bool, Any]:
    import datetime
    import importlib.util

    import torch.distributed as dist

    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/rendezvous",
            rank=rank,
            world_size=size,
            timeout=datetime.timedelta(seconds=180),
        )
        dist.barrier()  # a rank that fails at once must not be gone while others still connect
        file, name, sys.path[:], args = pickle.loads((folder / "job").read_bytes())
        specification = importlib.util.spec_from_file_location(Path(file).stem, file)
        assert specification is not None and specification.loader is not None
        module = importlib.util.module_from_spec(specification)
        sys.modules[Path(file).stem] = module
        specification.loader.exec_module(module)
        return True, getattr(module, name)(*pickle.loads(args))
    except BaseException:  # InvalidExperimentException is no Exception
        return False, traceback.format_exc()


if __name__ == "__main__":
    _main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
