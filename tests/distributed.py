"""Run a function on several gloo processes, so that a failure on one rank fails the test and never hangs it."""

from __future__ import annotations

import atexit
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


def run_ranks(
    function: Callable[..., Any], *args: Any, size: int = 2, timeout: float = 120, fresh: bool = False
) -> list[Any]:
    """What ``function(*args)`` returns on each of ``size`` ranks, ordered by rank.

    The ranks are processes of their own with torch.distributed up (gloo, rendezvous in a file, so no port can clash).
    They are kept for the next call of the same size, because importing torch takes longer than most tests; after a
    failure they are not, nor when they have become slow: groups of ranks that engines make are never taken down, and
    each has threads that wake up forty times a second.

    Args:
        function: importable by name from its module (a top-level function of a test file).
        args: picklable.
        size: number of ranks.
        timeout: seconds for all of it.
        fresh: use processes in which nothing ran before, and nothing will after.

    Raises:
        AssertionError: with the tracebacks, when a rank fails or the time is over. All ranks are ended.
    """
    pool = _Ranks(size) if fresh else _kept.pop(size, None) or _Ranks(size)
    good = False
    try:
        results = pool.run(function, args, timeout)
        good = True
        return results
    finally:
        if good and not fresh and pool.threads() < _MANY_THREADS:
            _kept[size] = pool
        else:
            pool.close()


class _Ranks:
    """Processes that wait for jobs in a folder."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.folder = tempfile.TemporaryDirectory(prefix="ranks-")
        self.jobs = 0
        self.processes = [_start(Path(self.folder.name), rank, size) for rank in range(size)]

    def run(self, function: Callable[..., Any], args: tuple[Any, ...], timeout: float) -> list[Any]:
        folder = Path(self.folder.name)
        job, self.jobs = self.jobs, self.jobs + 1
        module = sys.modules[function.__module__]
        description = pickle.dumps((str(module.__file__), function.__qualname__, args, list(sys.path), str(Path.cwd())))
        _put(folder / f"job{job}", description)
        outcomes = [folder / f"result{job}-{rank}" for rank in range(self.size)]
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            done = [pickle.loads(outcome.read_bytes()) for outcome in outcomes if outcome.exists()]
            ended = any(process.poll() is not None for process in self.processes)
            if len(done) == self.size or ended or not all(good for good, _ in done):
                break
            time.sleep(0.01)  # for a file; nothing depends on how long
        self._settle(outcomes)
        return self._results(outcomes)

    def _settle(self, outcomes: list[Path]) -> None:
        """Give the other ranks of a failure a moment to fail in their own words."""
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline and not all(outcome.exists() for outcome in outcomes):
            if all(process.poll() is not None for process in self.processes):
                return
            time.sleep(0.01)

    def _results(self, outcomes: list[Path]) -> list[Any]:
        results, problems = [], []
        for rank, outcome in enumerate(outcomes):
            code = self.processes[rank].poll()
            good, value = False, "still running" if code is None else f"ended with {code}"
            if outcome.exists():
                good, value = pickle.loads(outcome.read_bytes())
            if not good:
                log = (Path(self.folder.name) / f"log{rank}").read_text(errors="replace")[-3000:]
                problems.append(f"--- rank {rank}: {value}\n{log}")
            results.append(value)
        assert not problems, "a rank failed, or time was over (the others were ended)\n" + "\n".join(problems)
        return results

    def threads(self) -> int:
        """The most threads that one of the processes has; 0 where /proc does not tell."""
        return max(len([*Path(f"/proc/{process.pid}/task").glob("*")]) for process in self.processes)

    def close(self) -> None:
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()
        self.folder.cleanup()


_MANY_THREADS = 256
_kept: dict[int, _Ranks] = {}


@atexit.register
def _close_all() -> None:
    while _kept:
        _kept.popitem()[1].close()


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
        command = [sys.executable, __file__, str(folder), str(rank), str(size), str(os.getpid())]
        return subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)


def _put(path: Path, content: bytes) -> None:
    """Write a file that is never seen in part."""
    partial = path.with_name(f"partial-{path.name}")
    partial.write_bytes(content)
    partial.replace(path)


def _main(folder: Path, rank: int, size: int, parent: int) -> None:
    import datetime

    import torch.distributed as dist

    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=size,
        timeout=datetime.timedelta(seconds=60),
    )
    environment = dict(os.environ)
    job = 0
    while os.getppid() == parent:
        description = folder / f"job{job}"
        if not description.exists():
            time.sleep(0.01)
            continue
        outcome = _do(description)
        _put(folder / f"result{job}-{rank}", pickle.dumps(outcome))
        if not outcome[0]:
            break
        os.environ.clear()
        os.environ.update(environment)
        job += 1
    os._exit(0)  # not through destructors that wait for ranks which are gone


def _do(description: Path) -> tuple[bool, Any]:
    import importlib.util

    try:
        # The module of the function must be importable before its arguments can be read.
        file, name, args, path, directory = pickle.loads(description.read_bytes())
        sys.path[:] = path
        os.chdir(directory)
        specification = importlib.util.spec_from_file_location(Path(file).stem, file)
        assert specification is not None and specification.loader is not None
        module = importlib.util.module_from_spec(specification)
        sys.modules[Path(file).stem] = module
        specification.loader.exec_module(module)
        return True, getattr(module, name)(*args)
    except BaseException:  # InvalidExperimentException is no Exception
        return False, traceback.format_exc()


if __name__ == "__main__":
    _main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
