"""Settings of the whole test suite."""

from __future__ import annotations

import gc
import importlib.util
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from leftovers import adopt_orphans, end_leftovers, process_ids

# One thread for each process: sums are then taken in one order, and two ranks do not fight for the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Else ranks that a test starts run their command a second time, for a hash seed that all have.
os.environ.setdefault("PYTHONHASHSEED", "0")

# The key that signs checkpoints: for all processes of this run, and neither the developer's nor another run's.
if "PYTEST_XDIST_WORKER" not in os.environ:
    state_home = tempfile.TemporaryDirectory(prefix="ds-migrate-tests-")
    os.environ["XDG_STATE_HOME"] = state_home.name

# Else each process that a test starts compiles all modules anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A shell has a background job ignore SIGINT, and so would all that a test starts: exec keeps it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

adopt_orphans()


def pytest_configure(config: pytest.Config) -> None:
    """Have one process import torch and deepspeed for all workers."""
    if importlib.util.find_spec("deepspeed") is None:
        return
    import shared_fork_server

    if "PYTEST_XDIST_WORKER" in os.environ:
        shared_fork_server.join()
    elif getattr(config.option, "numprocesses", None):
        config.add_cleanup(shared_fork_server.SharedForkServer().close)


@pytest.fixture(autouse=True)
def processes_end() -> Iterator[None]:
    """Fail a test that leaves a process running, and kill that."""
    before = process_ids()
    yield
    left = end_leftovers(before)
    assert not left, "left running:\n" + "\n".join(left)


@pytest.fixture(autouse=True)
def signal_handlers_stay() -> Iterator[None]:
    """A context that a test does not close would receive the signals of the next test."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def environment_stays() -> Iterator[None]:
    """Training in this process leaves RANK and the like behind, which the next test's processes would take for real."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


def missing_gpu() -> str:
    """Why tests marked `gpu` cannot run here; empty when they can."""
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed: pip install -c constraints.txt -e '.[test]'"
    import torch

    if not torch.cuda.is_available():
        return f"torch {torch.__version__} sees no CUDA device"
    return ""


def pytest_collection_finish() -> None:
    """Spare each full garbage collection the 400,000 objects that live as long as the tests: it takes 0.25 s.

    Then collect seldom: what tests leave in cycles is little, and to visit all that is young takes 6% of their time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where slow tests alone are asked for, leave out files without one: to import all takes each worker seconds."""
    is_left_out = (
        config.option.markexpr == "slow"
        and collection_path.suffix == ".py"
        and b"mark.slow" not in collection_path.read_bytes()
    )
    return True if is_left_out else None


_LONG = 600
"""Seconds above which the limit of a test is that of one that takes or waits for a minute."""


def time_limit(item: pytest.Item) -> float:
    """Return the seconds of a test's own time limits, the longest; 0 without one."""
    return max((mark.args[0] for mark in item.iter_markers("timeout")), default=0)


def dealt_out(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """Order tests such that each worker begins with some of the long ones.

    At the end they would have all others wait for them. Other tests stay beside those that share their fixtures, as
    each worker begins with an equal part of the list.
    """
    long = sorted((item for item in items if time_limit(item) > _LONG), key=time_limit, reverse=True)
    others = sorted((item for item in items if time_limit(item) <= _LONG), key=time_limit, reverse=True)
    dealt: list[pytest.Item] = []
    for worker in range(workers):
        size = (len(items) - len(dealt)) // (workers - worker)
        first = long[worker::workers]
        count = max(0, size - len(first))
        dealt += [*first, *others[:count]]
        del others[:count]
    return dealt


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = dealt_out(items, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    # torch is imported only where a test asks for it
    if gpu_items and (reason := missing_gpu()):
        for item in gpu_items:
            item.add_marker(pytest.mark.skip(reason=reason))
