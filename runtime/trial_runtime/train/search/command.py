"""``ds-train`` with a config whose searcher runs several trials."""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any

from trial_runtime._redaction import masked, masked_constants, masked_text
from trial_runtime.search.brackets import Bracket, preview
from trial_runtime.search.config import Search
from trial_runtime.search.draws import TrialDraw, draw_trials
from trial_runtime.train.config import unsupported_fields
from trial_runtime.train.config.document import load
from trial_runtime.train.config.errors import ConfigError, Problems, Section
from trial_runtime.train.config.run_plan import RunPlan, make_plan
from trial_runtime.train.config.searcher import read_search
from trial_runtime.train.config.trackers import missing_trackers
from trial_runtime.train.requirements import missing_runtime
from trial_runtime.train.run.paths import relative_path
from trial_runtime.train.run.prepare import context_directory, given_directory, missing_device
from trial_runtime.train.run.run_directory import SUPERVISED_SEARCH, make_directory, refuse_links
from trial_runtime.train.search.assignment import Assignment
from trial_runtime.train.search.directory import SearchDirectory, SearchRecord
from trial_runtime.train.search.leader import Leader
from trial_runtime.train.search.ledger import LedgerError
from trial_runtime.train.search.result import print_result
from trial_runtime.train.search.retention import remove_superseded_of_trials
from trial_runtime.train.search.runner import Runner, ds_train_command
from trial_runtime.train.search.slots import Places, places_of_machine
from trial_runtime.train.search.views import Views

_MAX_SEED = 2**32 - 1
_POLL_SECONDS = 0.1
_DEFAULT_RESTARTS = 5  # Determined's; without it, a crash costs a trial its place


class SearchCommand:
    """One ``ds-train`` of a search: starts it, continues it, or joins it.

    Args:
        options: of ``ds-train``.
        document: the experiment config with its changes.
        report: receives a line for the user.

    Raises:
        ConfigError: the config cannot be run.
    """

    def __init__(self, options: argparse.Namespace, document: dict[str, Any], report: Callable[[str], None]) -> None:
        self._options, self._document, self._report = options, document, report
        problems = Problems()
        self._seed = Section(document, "", problems).section("reproducibility").optional_integer(
            "experiment_seed", 0, _MAX_SEED
        )  # fmt: skip
        search = read_search(document, problems, options.asha)
        problems.raise_any(str(options.config))
        assert search is not None  # else there was a problem
        if options.hparam:
            raise ConfigError(
                "--hparam: a search draws the hyperparameters; change the config with "
                "--config hyperparameters.NAME=VALUE, or train one trial with --config searcher.name=single"
            )
        self._search = search
        self._context = context_directory(options, document)
        first = next(draw_trials(self._seed or 0, self._hyperparameters, search.name == "grid"))
        assigned = Assignment(1, 1, first.request_id, first.seed, first.hparams, 1, search.target)
        self._plan: RunPlan = make_plan(
            document, str(options.config), self._context, test_mode=options.test, assignment=assigned
        )

    @property
    def _hyperparameters(self) -> Mapping[str, Any]:
        return self._document.get("hyperparameters") or {}

    @property
    def search(self) -> Search:
        """Return the method of the search."""
        return self._search

    @property
    def plan(self) -> RunPlan:
        """Return the plan of the first trial."""
        return self._plan

    def describe(self) -> None:
        """Print what the search is going to run, and each field that is not acted on."""
        search = self._search
        kind = f" ({search.generation})" if search.generation else ""
        length = "" if search.length is None else f", up to {search.length} {search.unit} each"
        self._report(f"{search.name}{kind}: {search.max_trials} trials{length}, judged by {self._metric}")
        for number, bracket in enumerate(search.brackets(), 1):
            if isinstance(bracket, Bracket):
                ends = ", ".join(f"{count} of {length}" for length, count in preview(bracket, search.divisor) if count)
                self._report(f"bracket {number}: {bracket.max_trials} trials, {bracket.concurrency} at once: {ends}")
            else:
                parts = zip(bracket.trials, bracket.lengths, strict=True)
                self._report(f"bracket {number}: " + ", ".join(f"{count} to {length}" for count, length in parts))
        for field, note in unsupported_fields.notices(self._document):
            self._report(f"{field}: {note}")

    def run(self) -> int:
        """Run the search; the exit code."""
        self.describe()
        if self._options.dry_run:
            return 0
        if missing := self._missing():
            raise ConfigError(missing)
        places = places_of_machine(self._options.slots, self._plan.slots)
        with _opening(self._options.run_dir):
            directory, record = self._open()
        self._report(f"run directory {relative_path(directory.path)}, seed {record.seed}; {places}")
        runner = self._runner(directory, places)
        views = Views(directory, self._search, self._metric, self._hyperparameters, self._report)
        with _signals() as received, views:
            status = self._loop(directory, record, runner, views, received)
        if received:
            self._report(
                f"stopped by {signal.Signals(received[0]).name}; continue with: {self._continue_command(directory)}"
            )
            return 128 + received[0]
        print_result(directory, self._search, self._metric, self._report)
        return 0 if status == "completed" else 1

    def _missing(self) -> str:
        missing = missing_runtime() or missing_trackers(self._plan.log_with)
        return missing or missing_device(self._options.device)

    @property
    def _metric(self) -> str:
        return str(self._plan.searcher_metric)

    def _loop(
        self, directory: SearchDirectory, record: SearchRecord, runner: Runner, views: Views, received: list[int]
    ) -> str:
        leader, lock, signalled = None, None, 0
        try:
            while True:
                if lock is None and (lock := directory.lead()) is not None:
                    leader = self._lead(directory, record)
                    directory.write(record)
                runner.record_ends()
                assignments = leader.step() if leader is not None else directory.assignments()
                if len(received) > signalled:
                    signalled = len(received)
                    runner.stop(signal.SIGTERM if signalled == 1 else signal.SIGKILL)
                runner.step([] if received else assignments)
                if received and not runner.trials:
                    record.status = "stopped"
                    break
                status = leader.status if leader is not None else _status_of(directory)
                if status not in (None, "running", "stopped"):
                    record.status = str(status)
                    break
                if leader is not None:
                    views.update(leader)
                time.sleep(_POLL_SECONDS)
            if leader is not None:
                views.update(leader, at_once=True)
                if not received:
                    trials = [directory.run_directory(trial) for trial in range(1, leader.ledger.state.created + 1)]
                    remove_superseded_of_trials(trials, self._plan.storage)
                directory.write(record)
            return record.status
        finally:
            runner.stop(signal.SIGTERM)
            runner.wait()
            if lock is not None:
                lock.close()

    def _lead(self, directory: SearchDirectory, record: SearchRecord) -> Leader:
        drawn: list[TrialDraw] = []
        stream = draw_trials(record.seed, self._hyperparameters, self._search.name == "grid")

        def draw(trial: int) -> TrialDraw:
            """Return what a trial is given, without the config's secrets: it reads them there."""
            drawn.extend(islice(stream, trial - len(drawn)))
            found = drawn[trial - 1]
            return replace(found, hparams=masked_constants(found.hparams, self._hyperparameters))

        try:
            return Leader(directory, self._search, self._metric, record.number, draw, self._report)
        except LedgerError as error:
            raise ConfigError(str(error)) from error

    def _open(self) -> tuple[SearchDirectory, SearchRecord]:
        """Make the directory of a new search, or open the one of a search to continue or to join."""
        given = given_directory(self._options, self._plan.name)
        directory = SearchDirectory((given or Path()).resolve())
        if given is not None and directory.exists:
            refuse_links(directory.path)
            try:
                record = directory.read()
            except ValueError as error:
                raise ConfigError(str(error)) from error
            if record.digest != self._digest():
                raise ConfigError(
                    f"--run-dir {given}: its search has another searcher or other hyperparameters; continue it with "
                    f"{given / 'config.yaml'}, or start a new one without --run-dir"
                )
            if self._seed not in (None, record.seed):
                raise ConfigError(
                    f"reproducibility.experiment_seed: {given} has the seed {record.seed}, not {self._seed}"
                )
            record.status = "running"
            return directory, record
        path, number = make_directory(given, self._plan.name)
        seed = secrets.randbelow(2**32) if self._seed is None else self._seed
        directory, record = SearchDirectory(path), SearchRecord(number, seed, self._digest())
        text = self._options.config.read_text(encoding="utf-8-sig")
        (path / "config.yaml").write_text(masked_text(text, load(self._options.config)), encoding="utf-8")
        directory.trials.mkdir()
        directory.write(record)
        return directory, record

    def _digest(self) -> str:
        content = masked({"searcher": self._document.get("searcher"), "hyperparameters": self._hyperparameters})
        return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:16]

    def _runner(self, directory: SearchDirectory, places: Places) -> Runner:
        changes = list(self._options.settings)
        if "max_restarts" not in self._document:
            changes.append(f"max_restarts={_DEFAULT_RESTARTS}")
        for name in ("early_stopping", "log_with", "log_grad_norm"):
            if name in self._document:
                changes.append(f"{name}={json.dumps(self._document[name])}")
        command = ds_train_command(str(self._options.config.resolve()), str(self._context), changes)
        if self._options.stop_on_nan:
            command.append("--stop-on-nan")
        if self._options.precision is not None:
            command.append(f"--precision={self._options.precision}")
        environment = {SUPERVISED_SEARCH: str(os.getpid()), **places.environment}
        return Runner(directory, command, places.count, places.devices, environment)

    def _continue_command(self, directory: SearchDirectory) -> str:
        return f"ds-train {self._options.config} --run-dir {relative_path(directory.path)}"


@contextmanager
def _opening(directory: Path | None) -> Iterator[None]:
    """Hold the name of a search's directory, so that of several commands started at once one makes it and all join."""
    if directory is None:
        yield
        return
    directory.parent.mkdir(parents=True, exist_ok=True)
    path = directory.parent / f".{directory.name}.opening"
    with path.open("a", encoding="utf-8") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
        path.unlink(missing_ok=True)  # whoever still waits for it finds the search made


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Provide the list of the signals that asked to end."""
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        received.append(number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
    previous = {number: signal.signal(number, note) for number in numbers}
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _status_of(directory: SearchDirectory) -> str | None:
    try:
        return directory.read().status
    except ValueError:  # on a shared folder, for a moment
        return None
