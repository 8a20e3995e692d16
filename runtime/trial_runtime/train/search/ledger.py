"""The ledger of a search: each event with what followed from it, one JSON line each, only ever appended to.

There is no other state: the decisions are made again from the events when the search is continued, and compared with
what the ledger has; so is, at some lines, a hash of the state. A line is on the disk before anything that it decides
is done, and all that can be done twice.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trial_runtime.search.events import Action, Event, from_json, to_json
from trial_runtime.search.state import SearchState


class LedgerError(Exception):
    """A ledger that does not follow from its own events; the message names the line."""


class Ledger:
    """The ledger in the file ``path``, and the state that it leads to.

    Args:
        path: made when missing.
        state: the state before the start; changed to where the ledger ends.

    Attributes:
        events: the events so far.
        actions: what was decided so far, the first trials included.

    Raises:
        LedgerError: the file was written by another version or for another config.
    """

    def __init__(self, path: Path, state: SearchState) -> None:
        self._path = path
        self.state = state
        self.events: list[Event] = []
        self.actions: list[Action] = []
        lines = self._whole_lines()
        if not lines:
            self._append(None, state.start())
            return
        for number, line in enumerate(lines, 1):
            self._replay(number, line)

    def handle(self, event: Event) -> Sequence[Action]:
        """Take an event and write it down with the actions that follow, which are returned."""
        actions = self.state.handle(event)
        self._append(event, actions)
        return actions

    def _append(self, event: Event | None, actions: list[Action]) -> None:
        entry: dict[str, Any] = {
            "event": None if event is None else to_json(event),
            "actions": [to_json(action) for action in actions],
        }
        if _has_digest(1 if event is None else len(self.events) + 2):
            entry["state"] = self.state.digest()
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._take(event, actions)

    def _take(self, event: Event | None, actions: list[Action]) -> None:
        if event is not None:
            self.events.append(event)
        self.actions.extend(actions)

    def _whole_lines(self) -> list[str]:
        """Return the lines; one that a kill left unfinished is removed from the file."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        if whole != data:
            with self._path.open("r+b") as file:
                file.truncate(len(whole))
        return whole.decode(errors="replace").splitlines()

    def _replay(self, number: int, line: str) -> None:
        try:
            entry: dict[str, Any] = json.loads(line)
            event = None if entry["event"] is None else from_json(entry["event"])
            written = [from_json(action) for action in entry["actions"]]
            digest = entry["state"] if _has_digest(number) else None
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise LedgerError(f"{self._path}, line {number}: is no entry of a search's ledger ({error})") from error
        if (event is None) != (number == 1):
            raise LedgerError(f"{self._path}, line {number}: only the first line of a ledger is the start of a search")
        actions = self.state.start() if event is None else self.state.handle(event)
        if actions != written or (digest is not None and self.state.digest() != digest):
            raise LedgerError(
                f"{self._path}, line {number}: this config decides {actions}, the ledger has {written}: the searcher "
                f"was changed, or another version wrote it. Continue with the config in {self._path.parent}, or start "
                "a new search"
            )
        self._take(event, actions)


def _has_digest(number: int) -> bool:
    """Return whether a line, counted from 1, has a hash of the state. Few do: the state grows with the search."""
    return number <= 64 or number.bit_count() == 1
