"""Run a function on several gloo processes, so that a failure on one rank fails the test and never hangs it."""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any


def run_ranks(function: Callable[..., Any], *args: Any, size: int = 2, timeout: float = 120) -> list[Any]:
    """What ``function(*args)`` returns on each of ``size`` ranks, ordered by rank.

    The ranks are fresh processes with torch.distributed up (gloo, rendezvous in a file, so no port can clash).

    Args:
        function: importable by name from its module (a top-level function of a test file).
        args: picklable.
        size: number of ranks.
        timeout: seconds for all of it.

    Raises:
        AssertionError: with the tracebacks, when a rank fails or the time is over. All ranks are ended.
    """
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        job = Path(folder) / "job"
        module = sys.modules[function.__module__]
        job.write_bytes(pickle.dumps((str(module.__file__), function.__qualname__, args)))
        processes = [_start(Path(folder), rank, size) for rank in range(size)]
        deadline = time.monotonic() + timeout
        try:
            _wait(processes, deadline)
        finally:
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                process.wait()
        return _results(Path(folder), size, [process.returncode for process in processes])


def _start(folder: Path, rank: int, size: int) -> subprocess.Popen[bytes]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TORCHELASTIC", "MASTER"))}
    environment |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(size),
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
    }
    with (folder / f"log{rank}").open("wb") as log:
        command = [sys.executable, __file__, str(folder), str(rank), str(size)]
        return subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)


def _wait(processes: list[subprocess.Popen[bytes]], deadline: float) -> None:
    """Until all have ended, or one has failed, or the time is over."""
    while time.monotonic() < deadline:
        codes = [process.poll() for process in processes]
        if all(code is not None for code in codes) or any(codes):
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            next(process for process in processes if process.poll() is None).wait(0.05)


def _results(folder: Path, size: int, codes: list[int]) -> list[Any]:
    results, problems = [], []
    for rank in range(size):
        outcome = folder / f"result{rank}"
        ok, value = pickle.loads(outcome.read_bytes()) if outcome.exists() else (False, f"ended with {codes[rank]}")
        if not ok:
            log = (folder / f"log{rank}").read_text(errors="replace")[-3000:]
            problems.append(f"--- rank {rank}: {value}\n{log}")
        results.append(value)
    assert not problems, "a rank failed, or time was over (the others were ended)\n" + "\n".join(problems)
    return results


def _main(folder: Path, rank: int, size: int) -> None:
    import datetime
    import importlib.util

    import torch.distributed as dist

    file, name, args = pickle.loads((folder / "job").read_bytes())
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/rendezvous",
            rank=rank,
            world_size=size,
            timeout=datetime.timedelta(seconds=60),
        )
        specification = importlib.util.spec_from_file_location(Path(file).stem, file)
        assert specification is not None and specification.loader is not None
        module = importlib.util.module_from_spec(specification)
        sys.modules[Path(file).stem] = module
        specification.loader.exec_module(module)
        outcome = (True, getattr(module, name)(*args))
    except BaseException:  # InvalidExperimentException is no Exception
        outcome = (False, traceback.format_exc())
    (folder / f"partial{rank}").write_bytes(pickle.dumps(outcome))
    (folder / f"partial{rank}").replace(folder / f"result{rank}")
    sys.stdout.flush()
    os._exit(0 if outcome[0] else 1)  # not through destructors that wait for ranks which are gone


if __name__ == "__main__":
    _main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
