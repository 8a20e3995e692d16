"""Conversion units converted side by side, on as many processes as pay off."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ds_migrate.conversion.unit import convert, failed
from ds_migrate.conversion.values import ConversionUnit, UnitResult

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

# Bytes of source for which one more process pays: converting them takes about 0.2 s.
_BYTES_PER_PROCESS = 50_000

Folder = list[ConversionUnit]  # units with trials in one folder


def convert_all(
    units: Sequence[ConversionUnit],
    jobs: int | None = 1,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> list[UnitResult]:
    """Convert every unit and return the results in the order of the units.

    ``jobs`` is the number of processes, None for as many as pay off. ``progress`` gets (done, all) units.
    """
    folders = _by_folder(units)
    wanted = jobs or min(_cores(), 1 + sum(unit.size for unit in units) // _BYTES_PER_PROCESS)
    processes = min(wanted, len(folders))
    done: dict[str, UnitResult] = {}
    for results in map(convert, folders) if processes < 2 else _in_processes(folders, processes):
        done.update((result.unit, result) for result in results)
        progress(len(done), len(units))
    return [done[unit.name] for unit in units]


def _in_processes(folders: Sequence[Folder], processes: int) -> Iterator[list[UnitResult]]:
    from concurrent.futures import as_completed
    from concurrent.futures.process import BrokenProcessPool

    unfinished: list[Folder] = []
    pool = _pool(processes)
    try:
        futures = {pool.submit(convert, folder): folder for folder in folders}
        for future in as_completed(futures):
            try:
                yield future.result()
            except BrokenProcessPool:
                unfinished.append(futures[future])
    finally:
        pool.shutdown(cancel_futures=True)
    for folder in unfinished:  # one process died and took the pool with it: find out which folder ends a process
        with _pool(1) as single:
            try:
                yield single.submit(convert, folder).result()
            except BrokenProcessPool:
                error = ChildProcessError("the process that converted it was ended")
                yield [failed(unit, error) for unit in folder]


def _pool(processes: int) -> ProcessPoolExecutor:
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    # Forked, a process has libcst imported already, which takes 0.3 s otherwise.
    return ProcessPoolExecutor(processes, get_context("fork"), initializer=_prepare_process)


def _prepare_process() -> None:
    """Let Ctrl-C end the process without a traceback, and end the process when its parent is gone."""
    import signal
    from multiprocessing import parent_process
    from threading import Thread

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    parent = parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    Thread(target=follow, daemon=True).start()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _by_folder(units: Sequence[ConversionUnit]) -> list[Folder]:
    groups: list[tuple[set[Path], Folder]] = []
    for unit in units:
        folders = {trial.path.parent for trial in unit.trials}
        near = [group for group in groups if group[0] & folders]
        groups = [group for group in groups if group not in near]
        groups.append((folders.union(*(f for f, _ in near)), [*(u for _, us in near for u in us), unit]))
    return [members for _, members in groups]
