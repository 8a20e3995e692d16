"""A big tree looked through on all cores before it is walked: which of its files the walk need not open."""

from __future__ import annotations

from ds_migrate.conversion.processes import spread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_TASK = 100  # files


def idle_files(names: Sequence[str], concerns: Callable[[str], bool], processes: int) -> set[str]:
    """Those of ``names`` that do not concern the run. A file that cannot be read (OSError) may."""
    tasks = [names[start : start + _TASK] for start in range(0, len(names), _TASK)]

    def idle(name: str) -> bool:
        try:
            return not concerns(name)
        except OSError:
            return False

    answers = spread(lambda number: bytes(map(idle, tasks[number])), len(tasks), processes, bytes, bytes)
    # None is from a process that died: the walk opens those files itself.
    pairs = ((task, answer) for task, answer in zip(tasks, answers, strict=True) if answer is not None)
    return {name for task, answer in pairs for name, found in zip(task, answer, strict=True) if found}
