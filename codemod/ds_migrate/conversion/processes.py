"""Work shared out over processes: this one and forks of it, which know all that it knows when it makes them.

A fork takes the next task when it is done with one, and notes each answer in a file in memory, so that nobody waits for
anybody and what a fork had finished outlives it. Where the system has neither, this process does all of it.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeVar

    T = TypeVar("T")

_SHARES = hasattr(os, "fork") and hasattr(os, "memfd_create")
_NUMBER = 8  # bytes of a task's number, and of an answer's size


def cores() -> int:
    """How many processes this one may keep busy."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def spread(
    work: Callable[[int], T],
    count: int,
    processes: int,
    dumps: Callable[[T], bytes],
    loads: Callable[[bytes], T],
    progress: Callable[[int], None] = lambda _taken: None,
) -> list[T | None]:
    """The answers ``work(0)`` to ``work(count - 1)``, whoever gives them; None for a task that ended its process.

    ``dumps`` and ``loads`` take an answer from a fork to here. ``progress`` is told how many tasks are taken. What
    ``work`` raises here, KeyboardInterrupt included, ends the forks and is raised.
    """
    answers: list[T | None] = [None] * count
    more = min(processes, count) - 1
    if more < 1 or not _SHARES:
        for number in range(count):
            answers[number] = work(number)
            progress(number + 1)
        return answers
    tasks = _in_memory(b"".join(map(_encoded, range(count))))
    notes = [_in_memory() for _ in range(more)]
    forks: list[int] = []
    try:
        for file in notes:
            fork = _forked(work, dumps, tasks, file)
            if fork is None:  # the system has no room for another: those that there are do all of it
                break
            forks.append(fork)
        for number, answer in _done(work, tasks):
            answers[number] = answer
            progress(os.lseek(tasks, 0, os.SEEK_CUR) // _NUMBER)
        while forks:
            os.waitpid(forks[-1], 0)
            forks.pop()
        for file in notes:
            for number, data in _noted(file):
                answers[number] = loads(data)
    finally:
        for fork in forks:
            _end(fork)
        for file in (tasks, *notes):
            os.close(file)
    return answers


def _forked(work: Callable[[int], T], dumps: Callable[[T], bytes], tasks: int, notes: int) -> int | None:
    """The number of a new process, which takes tasks and notes its answers. It says nothing, not even of its end."""
    parent = os.getpid()
    try:
        fork = os.fork()
    except OSError:
        return None
    if fork:
        return fork
    try:
        for number, answer in _done(work, tasks):
            data = dumps(answer)
            os.write(notes, _encoded(number) + _encoded(len(data)) + data)
            if os.getppid() != parent:  # nobody waits for the rest
                break
    finally:
        os._exit(0)


def _end(fork: int) -> None:
    from signal import SIGKILL

    os.kill(fork, SIGKILL)
    os.waitpid(fork, 0)


def _done(work: Callable[[int], T], tasks: int) -> Iterator[tuple[int, T]]:
    """Take tasks until none is left. All processes share the place in the file, so each number is read once."""
    while data := os.read(tasks, _NUMBER):
        number = int.from_bytes(data, "little")
        yield number, work(number)


def _noted(notes: int) -> Iterator[tuple[int, bytes]]:
    """What a fork has answered, without an answer that it was ended in."""
    place, end = 0, os.lseek(notes, 0, os.SEEK_END)
    while place < end:
        number, size = (int.from_bytes(os.pread(notes, _NUMBER, place + at), "little") for at in (0, _NUMBER))
        place += 2 * _NUMBER
        data = os.pread(notes, size, place)
        place += size
        if len(data) == size:
            yield number, data


def _in_memory(data: bytes = b"") -> int:
    file = os.memfd_create("ds-migrate")
    os.write(file, data)
    os.lseek(file, 0, os.SEEK_SET)
    return file


def _encoded(number: int) -> bytes:
    return number.to_bytes(_NUMBER, "little")
