"""Files of a search's directory that somebody planted or tore: an error that names the file, or no effect at all."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from trial_runtime._atomic_file import write_whole
from trial_runtime.search.config import Search
from trial_runtime.search.events import Action, Close, Closed, Create, Created, Event, Train, Validated
from trial_runtime.search.state import SearchState
from trial_runtime.train.search.assignment import Assignment, Outcome
from trial_runtime.train.search.directory import SearchDirectory
from trial_runtime.train.search.ledger import Ledger, LedgerError

GOOD: dict[str, Any] = {"trial": 1, "experiment": 1, "request_id": "x", "seed": 1, "hparams": {}}

WRONG: list[dict[str, Any]] = [
    {"trial": "../../x"}, {"trial": 2}, {"seed": "a"}, {"hparams": []}, {"order": None}, {"length": 5},
    {"request_id": 3}, {"experiment": True},
]  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "5", "null", "[" * 100_000, "\0", '{"trial": 1', json.dumps({**GOOD, "more": 1}),
        *(json.dumps({**GOOD, **change}) for change in WRONG),
    ],
    ids=range(16),
)  # fmt: skip
def test_a_file_that_is_no_assignment_is_named(text: str, tmp_path: Path) -> None:
    path = tmp_path / "0001.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"0001\.json: is no assignment of a search's trial"):
        Assignment.read(path)
    assert Outcome.read(path) is None


def test_an_assignment_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "0012.json"
    written = Assignment(**{**GOOD, "trial": 12, "order": 1, "length": {"batches": 3}})
    written.write(path)
    assert Assignment.read(path) == written


@pytest.mark.parametrize("planted", ["file.json", ".file.json.tmp"])
def test_a_planted_link_is_replaced_and_not_followed(planted: str, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / planted).symlink_to(outside)
    write_whole(tmp_path / "run/file.json", "new")
    assert outside.read_text() == "mine"
    assert (tmp_path / "run/file.json").read_text() == "new"
    assert os.listdir(tmp_path / "run") == ["file.json"]  # noqa: PTH208


def make_ledger(path: Path, trials: int) -> Ledger:
    """Write the ledger of a whole search."""
    draw = random.Random(1)
    ledger = Ledger(path, SearchState(search_of(trials)))
    waiting: list[Action] = list(ledger.actions)
    for action in waiting:
        match action:
            case Create(trial):
                event: Event = Created(trial)
            case Train(trial):
                event = Validated(trial, draw.random())
            case Close(trial):
                event = Closed(trial)
            case _:
                break
        waiting.extend(ledger.handle(event))
    return ledger


def search_of(trials: int) -> Search:
    return Search("adaptive_asha", 16, "batches", trials, generation="promotion")


def test_a_long_ledger_is_read_in_linear_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    hashed: list[int] = []
    digest = SearchState.digest
    monkeypatch.setattr(SearchState, "digest", lambda self: hashed.append(1) or digest(self))  # type: ignore[func-returns-value]
    written = make_ledger(tmp_path / "search.jsonl", 1500)
    lines = len(written.events) + 1
    assert lines > 4000 and len(hashed) == 64 + len([n for n in range(65, lines + 1) if n.bit_count() == 1])
    hashed.clear()
    again = Ledger(tmp_path / "search.jsonl", SearchState(search_of(1500)))
    assert again.events == written.events and again.actions == written.actions
    assert again.state.digest() == written.state.digest() and len(hashed) < 80


MALFORMED: list[Any] = [
    5, [], {}, "x", {"event": 5, "actions": []}, {"event": {"type": "Created"}, "actions": [], "state": ""},
    {"event": {"type": "Created", "trial": "1"}, "actions": [], "state": ""},
    {"event": {"type": "Created", "trial": []}, "actions": [], "state": ""},
    {"event": {"type": "Created", "trial": True}, "actions": [], "state": ""},
    {"event": {"type": "Validated", "trial": 1, "metric": "x"}, "actions": [], "state": ""},
    {"event": {"type": "Validated", "trial": 1, "metric": 10**400}, "actions": [], "state": ""},
    {"event": {"type": "Validated", "trial": 1, "metric": 0.5, "time": 0.5}, "actions": [], "state": ""},
    {"event": {"type": "ExitedEarly", "trial": 1, "reason": "tired"}, "actions": [], "state": ""},
    {"event": {"type": "Created", "trial": 1}, "actions": [{"type": "Train", "trial": 1, "length": {}}], "state": ""},
    {"event": {"type": "Created", "trial": 1}, "actions": {"type": "Close"}, "state": ""},
    {"event": {"type": "Created", "trial": 1}, "actions": []},
]  # fmt: skip


@pytest.mark.parametrize("entry", [*map(json.dumps, MALFORMED), "", "[" * 100_000, "\0"], ids=range(19))
def test_a_line_that_is_no_entry_is_named(entry: str, tmp_path: Path) -> None:
    path = tmp_path / "search.jsonl"
    make_ledger(path, 4)
    first = path.read_text().splitlines()[0]
    path.write_text(f"{first}\n{entry}\n")
    with pytest.raises(LedgerError, match=r"search\.jsonl, line 2: is no entry of a search's ledger"):
        Ledger(path, SearchState(search_of(4)))


def test_a_changed_metric_is_noticed_where_the_state_is_compared(tmp_path: Path) -> None:
    path = tmp_path / "search.jsonl"
    make_ledger(path, 30)
    lines = path.read_text().splitlines()
    index = next(i for i, line in enumerate(lines) if "Validated" in line)
    changed = json.loads(lines[index])
    changed["event"]["metric"] += 1e-9
    path.write_text("\n".join([*lines[:index], json.dumps(changed), *lines[index + 1 :], ""]))
    with pytest.raises(LedgerError, match="line"):
        Ledger(path, SearchState(search_of(30)))


@pytest.mark.parametrize(
    "record",
    ["", "[]", "[" * 100_000, '{"number": 1}', '{"number": "1", "seed": 1, "digest": ""}',
     '{"number": 1, "seed": -1, "digest": ""}', '{"number": 1, "seed": 1e400, "digest": ""}',
     '{"number": 1, "seed": 1, "digest": "", "more": 1}'],
)  # fmt: skip
def test_a_record_that_no_search_wrote_is_named(record: str, tmp_path: Path) -> None:
    (tmp_path / "search.json").write_text(record)
    with pytest.raises(ValueError, match=r"search\.json: cannot be read"):
        SearchDirectory(tmp_path).read()
