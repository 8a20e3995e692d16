"""The brackets of an adaptive search, and the lengths of their rungs.

Each trial of a bracket with ``n`` rungs trains to the length of the lowest; of the trials at each rung about one in
``divisor`` continues to the next, the highest being the full length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trial_runtime.search import go_math

MODES = ("aggressive", "standard", "conservative")


@dataclass(frozen=True)
class Bracket:
    """One bracket: ``max_trials`` trials over ``lengths``, at most ``concurrency`` at once.

    Attributes:
        lengths: the absolute length of each rung in units of ``max_length``, lowest first.
    """

    lengths: tuple[int, ...]
    max_trials: int
    concurrency: int


def rung_lengths(length: int, rungs: int, divisor: float) -> tuple[int, ...]:
    """Return the length of each of ``rungs`` rungs, the last being ``length``."""
    return tuple(max(int(length / divisor ** (rungs - 1 - rung)), 1) for rung in range(rungs))


def rungs_of_mode(mode: str, max_rungs: int) -> list[int]:
    """Return the number of rungs of each bracket; the more there are, the earlier a bracket stops its trials."""
    lowest = {"aggressive": max_rungs, "standard": (max_rungs - 1) // 2 + 1, "conservative": 1}[mode]
    return list(range(lowest, max_rungs + 1))


def adaptive_brackets(
    length: int,
    max_trials: int,
    concurrency: int,
    divisor: float = 4,
    mode: str = "standard",
    max_rungs: int = 5,
    bracket_rungs: Sequence[int] = (),
) -> list[Bracket]:
    """Return the brackets of ``adaptive_asha``, the one that stops trials earliest first.

    Args:
        length: ``max_length`` or ``max_time``, in its unit.
        max_trials: trials of all brackets; some more where a bracket would have none.
        concurrency: ``max_concurrent_trials``, 0 for as many as the brackets take.
        divisor, mode, max_rungs, bracket_rungs: the fields of the searcher.
    """
    limit = min(max_rungs, _rungs_below(length, divisor), _rungs_below(max_trials, divisor))
    rungs = sorted(bracket_rungs or rungs_of_mode(mode, limit), reverse=True)
    weights = [divisor ** (count - 1) / count for count in rungs]
    trials = [max(int(weight / sum(weights) * max_trials), 1) for weight in weights]
    trials[0] += max(max_trials - sum(trials), 0)
    at_once = _shared_concurrency(concurrency, trials, divisor)
    return [
        Bracket(rung_lengths(length, count, divisor), most_trials, most_at_once)
        for count, most_trials, most_at_once in zip(rungs, trials, at_once, strict=True)
    ]


def asha_bracket(length: int, rungs: int, max_trials: int, concurrency: int, divisor: float = 4) -> Bracket:
    """Return the one bracket of ``async_halving``."""
    most = concurrency or min(max(int(divisor ** (rungs - 1)), 1), max_trials)
    return Bracket(rung_lengths(length, rungs, divisor), max_trials, most)


def preview(bracket: Bracket, divisor: float) -> Iterator[tuple[int, int]]:
    """Return ``(length, trials that end there)`` for each rung, if every rung promotes as many as it may."""
    left = bracket.max_trials
    for length in bracket.lengths[:-1]:
        kept = max(int(left / divisor), 1)
        yield length, left - kept
        left = kept
    yield bracket.lengths[-1], left


def _rungs_below(count: int, divisor: float) -> int:
    # A quotient of Go's logarithms: 243 with divisor 3 has six rungs, which Python's own would make five.
    return int(go_math.log(count) / go_math.log(divisor)) + 1


def _shared_concurrency(concurrency: int, trials: list[int], divisor: float) -> list[int]:
    if concurrency == 0:
        return [max(trials[-1], int(divisor))] * len(trials)
    concurrency = max(concurrency, len(trials))
    each, more = divmod(concurrency, len(trials))
    return [each + (index < more) for index in range(len(trials))]
