"""The decisions of each search method, against the tables of Determined's simulations."""

from __future__ import annotations

import copy
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trial_runtime.search.config import Search
from trial_runtime.search.draws import draw_trials
from trial_runtime.search.events import (
    Action,
    Close,
    Closed,
    Create,
    Created,
    Event,
    ExitedEarly,
    Shutdown,
    Train,
    Validated,
    from_json,
    to_json,
)
from trial_runtime.search.schedule import WORST
from trial_runtime.search.state import SearchState, next_actions

LETTERS = {(1000,): "S", (1000, 3000): "M", (1000, 3000, 9000): "F", (9000,): "F"}


@dataclass
class Simulation:
    """A search whose trials report at once; actions are taken in the order in which they came, or in a given one.

    Attributes:
        lengths: what each trial trained to.
        progress: of the search, after each event.
    """

    search: Search
    metric: Callable[[int], float]
    exits: Mapping[int, int] = field(default_factory=dict)  # trial: the report (from 1) that it leaves instead of
    pick: Callable[[int], int] = lambda _: 0
    lengths: dict[int, list[int]] = field(default_factory=dict)
    progress: list[float] = field(default_factory=list)
    status: str | None = None

    def run(self) -> Simulation:
        self.state = SearchState(self.search)
        self.exited: set[int] = set()
        waiting: deque[Action] = deque(self.state.start())
        while waiting:
            action = first_of_a_trial(waiting, self.pick)
            for event in self.events(action):
                waiting.extend(self.state.handle(event))
                self.progress.append(self.state.progress())
        return self

    def events(self, action: Action) -> list[Event]:
        match action:
            case Create(trial):
                self.lengths[trial] = []
                return [Created(trial)]
            case Train(trial, length) if trial not in self.exited:
                self.lengths[trial].append(length)
                if len(self.lengths[trial]) == self.exits.get(trial):
                    self.exited.add(trial)
                    return [ExitedEarly(trial, "stop_requested"), Closed(trial)]
                return [Validated(trial, self.metric(trial))]
            case Close(trial):
                return [Closed(trial)]
            case Shutdown(status):
                self.status = status
        return []

    @property
    def letters(self) -> str:
        return " ".join(LETTERS[tuple(self.lengths[trial])] for trial in sorted(self.lengths))


def first_of_a_trial(waiting: deque[Action], pick: Callable[[int], int]) -> Action:
    """Take the first action of one of the trials that have any; the order within a trial is kept."""
    first: dict[int, Action] = {}
    for action in waiting:
        first.setdefault(getattr(action, "trial", 0), action)
    chosen = list(first.values())[pick(len(first))]
    waiting.remove(chosen)
    return chosen


def asha(generation: Any, smaller: bool = True, length: int = 9000, trials: int = 12, rungs: int = 3) -> Search:
    return Search(
        "async_halving", length, "batches", trials, divisor=3, num_rungs=rungs, generation=generation,
        smaller_is_better=smaller,
    )  # fmt: skip


def rising(trial: int) -> float:
    return trial / 100


def falling(trial: int) -> float:
    return 0.13 - trial / 100


def cycling(trial: int) -> float:
    return (0.01, 0.02, 0.03, 0.04)[(trial - 1) % 4]


def late(trial: int) -> float:
    return (0.10, 0.11, 0.12, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 0.09)[trial - 1]


@pytest.mark.parametrize(
    "search, metric, exits, letters",
    [
        (asha("promotion"), rising, {}, "F M M M S S S S S S S S"),
        (asha("promotion"), rising, {3: 2}, "F M M M S S S S S S S S"),
        (asha("promotion", smaller=False), falling, {}, "F M M M S S S S S S S S"),
        (asha("promotion", smaller=False), falling, {3: 2}, "F M M M S S S S S S S S"),
        (asha("promotion"), late, {3: 1}, "M S S F M M M S S S S S"),
        (asha("stop_once"), rising, {}, "F S S S S S S S S S S S"),
        (asha("stop_once"), cycling, {}, "F S S S F S S S F S S S"),
        (asha("stop_once"), cycling, {5: 2}, "F S S S M S S S F S S S"),
        (asha("stop_once", smaller=False), rising, {}, "F F F F F F F F F F F F"),
        (asha("stop_once", smaller=False), cycling, {}, "F F F F S S M F S S M F"),
        (asha("stop_once", smaller=False), cycling, {4: 2}, "F F F M S S F F S S F F"),
        (asha("promotion", trials=4, rungs=1), rising, {}, "F F F F"),
        (asha("stop_once", trials=4, rungs=1), rising, {}, "F F F F"),
    ],
)
def test_one_bracket(search: Search, metric: Callable[[int], float], exits: dict[int, int], letters: str) -> None:
    simulation = Simulation(search, metric, exits).run()
    assert simulation.letters == letters
    assert simulation.status == "completed" and len(simulation.state.closed) == search.max_trials


@pytest.mark.parametrize("exits", [{}, {2: 1}])
@pytest.mark.parametrize(
    "generation, smaller, metric, lengths",
    [
        ("promotion", True, rising, [[300, 900], [300], [300], [900], [900]]),
        ("promotion", False, falling, [[300, 900], [300], [300], [900], [900]]),
        ("stop_once", True, rising, [[300, 900], [300], [300], [900], [900]]),
    ],
)
def test_two_brackets(
    generation: Any, smaller: bool, metric: Callable[[int], float], lengths: list[list[int]], exits: dict[int, int]
) -> None:
    simulation = Simulation(adaptive(generation, smaller), metric, exits).run()
    assert list(simulation.lengths.values()) == lengths


@pytest.mark.parametrize(
    "exits, lengths",
    [
        ({}, [[300, 900], [300, 900], [300, 900], [900], [900]]),
        ({2: 1}, [[300, 900], [300], [300, 900], [900], [900]]),
    ],
)
def test_two_brackets_that_stop_once(exits: dict[int, int], lengths: list[list[int]]) -> None:
    assert list(Simulation(adaptive("stop_once", False), rising, exits).run().lengths.values()) == lengths


def adaptive(generation: Any, smaller: bool = True) -> Search:
    return Search(
        "adaptive_asha", 900, "batches", 5, divisor=3, max_rungs=2, generation=generation, smaller_is_better=smaller
    )


@pytest.mark.parametrize(
    "search, exits, lengths",
    [
        (Search("random", 500, "batches", 4, 2), {4: 1}, [[500]] * 4),
        (Search("random", 32017, "batches", 4), {}, [[32017]] * 4),
        (Search("single", 500, "batches", 1), {}, [[500]]),
        (Search("grid", 300, "batches", 6, 2), {6: 1}, [[300]] * 6),
        (Search("random", 10, "batches", 5, 0), {}, [[10]] * 5),
    ],
)
def test_trials_of_one_length(search: Search, exits: dict[int, int], lengths: list[list[int]]) -> None:
    simulation = Simulation(search, lambda _: 0.1, exits).run()
    assert list(simulation.lengths.values()) == lengths
    assert simulation.status == "completed"


@pytest.mark.parametrize(
    "search, lengths",
    [
        (Search("adaptive_simple", 32, "batches", 16, divisor=4, mode="aggressive", max_rungs=3), [2, 8, 32]),
        (Search("sync_halving", 32, "batches", 0, divisor=4, num_rungs=3, budget=80), [2, 8, 32]),
    ],
)
def test_synchronous_halving_keeps_the_best_of_each_rung(search: Search, lengths: list[int]) -> None:
    simulation = Simulation(search, rising).run()
    assert simulation.lengths[1] == lengths
    by_count = [sum(len(done) > rung for done in simulation.lengths.values()) for rung in range(3)]
    assert by_count == sorted(by_count, reverse=True) and by_count[2] >= 1
    assert max(trial for trial, done in simulation.lengths.items() if len(done) == 2) <= by_count[1]
    assert simulation.status == "completed"


@pytest.mark.parametrize(
    "length, lengths", [(576000, [64000, 192000, 576000]), (9000, [1000, 3000, 9000]), (12, [1, 4, 12])]
)
@pytest.mark.parametrize("seed", range(7))
def test_promotion_promotes_as_many_in_any_order(length: int, lengths: list[int], seed: int) -> None:
    order = random.Random(seed)
    simulation = Simulation(asha("promotion", length=length), lambda _: 1.0, pick=order.randrange).run()
    done = sorted((tuple(each) for each in simulation.lengths.values()), key=len)
    assert done == [tuple(lengths[:1])] * 8 + [tuple(lengths[:2])] * 3 + [tuple(lengths)]
    assert simulation.progress[-1] == 1 and simulation.progress == sorted(simulation.progress)
    assert simulation.status == "completed"


def test_next_actions_leaves_the_state_that_it_is_given() -> None:
    state = SearchState(adaptive("promotion"))
    waiting = deque(state.start())
    events: list[Event] = [Created(1), Created(2), Validated(2, 0.5), Created(3), Validated(1, 0.4)]
    for event in [*events, ExitedEarly(3, "errored")]:
        digest, untouched = state.digest(), copy.deepcopy(state)
        after, actions = next_actions(state, event)
        assert state.digest() == digest != after.digest()
        assert untouched.handle(event) == actions and untouched.digest() == after.digest()
        state = after
        waiting.extend(actions)
    assert any(isinstance(action, Train) and action.length == 900 for action in waiting)


@settings(deadline=None)
@given(st.data())
def test_every_search_ends_whatever_its_trials_do(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["random", "grid", "async_halving", "adaptive_asha", "adaptive_simple"]))
    search = Search(
        name, data.draw(st.integers(1, 100)), "batches", data.draw(st.integers(1, 12)),
        data.draw(st.integers(0, 5)), divisor=data.draw(st.sampled_from([2, 3, 4, 2.5])),
        num_rungs=data.draw(st.integers(1, 4)), generation=data.draw(st.sampled_from(["promotion", "stop_once"])),
    )  # fmt: skip
    state = SearchState(search)
    waiting = deque(state.start())
    order = random.Random(data.draw(st.integers(0, 1000)))
    ended: set[int] = set()
    invalid = 0
    while waiting:
        action = first_of_a_trial(waiting, order.randrange)
        events: list[Event] = []
        match action:
            case Create(trial):
                events = [Created(trial)]
            case Train(trial) if trial not in ended:
                reason: Any = order.choices([None, "errored", "invalid_hp", "stop_requested"], [6, 1, invalid < 5, 1])[
                    0
                ]
                if reason is None:
                    events = [Validated(trial, order.choice([order.random(), float("nan"), float("inf")]))]
                else:
                    invalid += reason == "invalid_hp"
                    ended.add(trial)
                    events = [ExitedEarly(trial, reason), Closed(trial)]
            case Close(trial):
                events = [Closed(trial)]
        for event in events:
            waiting.extend(state.handle(from_json(to_json(event))))
            assert 0 <= state.progress() <= 1
    assert state.is_over and len(state.closed) == state.created


def test_invalid_hyperparameters_are_replaced_by_another_trial() -> None:
    for search in (asha("promotion"), asha("stop_once"), Search("random", 9000, "batches", 12)):
        state = SearchState(search)
        first = state.start()
        replaced = next(action.trial for action in first if isinstance(action, Create))
        made = state.created
        actions = state.handle(ExitedEarly(replaced, "invalid_hp")) + state.handle(Closed(replaced))
        assert (Create(made + 1) in actions) is (search.name == "async_halving" or search.max_concurrent_trials > 12)


def test_metric_that_is_no_number_counts_as_the_worst() -> None:
    state = SearchState(asha("promotion"))
    state.start()
    for trial in range(1, 4):
        state.handle(Created(trial))
        state.handle(Validated(trial, [0.5, float("nan"), -float("inf")][trial - 1]))
    assert [entry.metric for entry in state.schedule.rungs[0].entries] == [-float("inf"), 0.5, WORST]  # type: ignore[attr-defined]


def test_report_of_a_closed_trial_changes_nothing() -> None:
    state = SearchState(Search("random", 10, "batches", 3, 1))
    state.start()
    state.handle(Closed(1))
    digest = state.digest()
    assert (
        state.handle(Validated(1, 0.0)) == []
        and state.handle(Closed(1)) == []
        and state.handle(Validated(9, 0.0)) == []
    )
    assert state.digest() == digest


# ----- over a time metric (0.38) -----


def by_time(search: Search, period: int, reports: Sequence[int]) -> list[tuple[int, int]]:
    """Run trials one after another, each reporting every ``period`` until stopped; (bracket, stopped at) of each."""
    state, ended, counter = SearchState(search), [], 0
    waiting = deque(state.start())
    while waiting:
        action = waiting.popleft()
        if not isinstance(action, Create):
            continue
        trial = action.trial
        waiting.extend(state.handle(Created(trial)))
        for time in reports[::period]:
            counter += 1
            actions = state.handle(Validated(trial, float(counter), time))
            waiting.extend(actions)
            if Close(trial) in actions:
                break
        bracket = getattr(state.schedule, "bracket_of", {}).get(trial, 0)
        ended.append((bracket, time))
        waiting.extend(state.handle(Closed(trial)))
    assert state.is_over
    return ended


def test_one_bracket_over_time() -> None:
    search = Search("async_halving", 900, "seconds", 10, 3, divisor=3, num_rungs=3, generation="time")
    assert by_time(search, 100, range(901)) == [(0, 900)] + [(0, 100)] * 9


def test_two_brackets_over_time() -> None:
    search = Search("adaptive_asha", 90, "seconds", 9, 3, divisor=3, generation="time")
    assert [(len(bracket.lengths), bracket.max_trials) for bracket in search.brackets()] == [(3, 6), (2, 3)]  # type: ignore[union-attr]
    expected = [(0, 90), (0, 10), (1, 90), (0, 10), (0, 10), (1, 30), (0, 10), (0, 10), (1, 30)]
    assert by_time(search, 10, range(91)) == expected


def test_trial_without_the_time_metric_is_an_error() -> None:
    state = SearchState(Search("async_halving", 9, "seconds", 3, divisor=3, num_rungs=3, generation="time"))
    state.start()
    with pytest.raises(ValueError, match="without the time metric"):
        state.handle(Validated(1, 0.5))


# ----- the trials of a whole search -----


def test_adaptive_search_gives_the_masters_trials_to_the_masters_brackets() -> None:
    spaces = {"lr": {"type": "double", "minval": 0.0, "maxval": 1.0}}
    simulation = Simulation(adaptive("promotion"), rising).run()
    drawn = list(islice(draw_trials(7, spaces), 5))
    assert [round(trial.hparams["lr"], 6) for trial in drawn] == [0.076308, 0.455585, 0.072051, 0.868801, 0.288146]
    assert [trial.seed for trial in drawn] == [959775639, 372560217, 769786948, 748743479, 1941857605]
    assert simulation.state.schedule.bracket_of == {1: 0, 2: 0, 3: 0, 4: 1, 5: 1}  # type: ignore[attr-defined]


def test_event_of_another_version_is_refused() -> None:
    with pytest.raises(ValueError, match="neither an event nor an action"):
        from_json({"type": "Teleported", "trial": 1})
