"""Summarize a report: its counts, the exit code, and the sentences and commands that end a run."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from ds_migrate.findings import FileKind, FileStatus, Report, Severity, TrialStatus
from ds_migrate.report.counts import count, nothing_found
from ds_migrate.report.escaping import visible
from ds_migrate.rules.codes import Code

MARKER_CODE = Code.LEFTOVER_MARKER
MEMORY_CODE = Code.MEMORY
_RANKS_CODE = Code.PLAIN_DISTRIBUTED
_MANY_TRIALS = 3
_MANY_PATHS = 6
# Not the module of a library: it starts ranks at its top level, or has a block of ``__main__``.
_SCRIPT = re.compile(rb"^(?:\w+\.)?init_distributed\(|^if __name__ ==", re.MULTILINE)
EXIT_DONE, EXIT_WORK_REMAINS, EXIT_FAILED, EXIT_INTERRUPTED = 0, 1, 2, 130


class Mode(Enum):
    """The use that a run makes of its findings."""

    PREVIEW = "preview"
    CHECK = "check"
    WRITE = "write"


@dataclass(frozen=True)
class Summary:
    """Counts: ``files`` searched, trials by status, ``review`` (``markers`` among them) and ``errors``
    findings, files to write or written."""

    files: int
    trials: int
    converted: int
    blocked: int
    unsupported: int
    already: int
    skipped: int
    declined: int
    ignored: int
    review: int
    markers: int
    errors: int
    changed: int
    created: int

    @classmethod
    def of(cls, report: Report) -> Summary:
        def trials(*statuses: TrialStatus) -> int:
            return sum(1 for _ in report.trials(*statuses))

        def files(status: FileStatus) -> int:
            return sum(1 for file in report.files if file.status is status and file.to_write)

        markers = sum(1 for _, finding in report.findings(Severity.REVIEW) if finding.code == MARKER_CODE)
        return cls(
            files=report.searched,
            trials=trials(),
            converted=trials(TrialStatus.CONVERTED),
            blocked=trials(TrialStatus.BLOCKED),
            unsupported=trials(TrialStatus.UNSUPPORTED_API),
            already=trials(TrialStatus.ALREADY_DEEPSPEED),
            skipped=trials(TrialStatus.SKIPPED),
            declined=trials(TrialStatus.DECLINED),
            ignored=len(report.accepted),
            review=sum(1 for _ in report.findings(Severity.REVIEW)),
            markers=markers,
            errors=sum(1 for _ in report.findings(Severity.ERROR)),
            changed=files(FileStatus.CHANGED),
            created=files(FileStatus.CREATED),
        )


def exit_code(report: Report, mode: Mode) -> int:
    """Return 0 when nothing is left to do, 1 when work remains (never for a preview), 2 when a file failed."""
    summary = Summary.of(report)
    if summary.errors or any(file.status is FileStatus.ERROR for file in report.files):
        return EXIT_FAILED
    refused = summary.blocked or summary.unsupported or any(report.findings(Severity.BLOCKED))
    waiting = summary.converted or summary.markers or any(file.to_write for file in report.files)
    if mode is Mode.CHECK and (refused or waiting):
        return EXIT_WORK_REMAINS
    if mode is Mode.WRITE and (refused or summary.declined):
        return EXIT_WORK_REMAINS
    return EXIT_DONE


@dataclass(frozen=True)
class Command:
    """The command line of the run, to repeat it in another mode.

    Attributes:
        paths: as typed.
        options: those that change results.
        is_versioned: whether git keeps the earlier versions of the files in a folder.
        shows_memory: whether to show what training takes in memory.
    """

    paths: Sequence[str]
    options: Sequence[str] = ()
    is_versioned: Callable[[str], bool] = lambda _folder: False
    shows_memory: bool = False

    def line(self, *extra: str) -> str:
        paths = self.paths if len(self.paths) <= _MANY_PATHS else [self._common_folder()]
        return visible(shlex.join(["ds-migrate", *extra, *self.options, *paths]))

    def _common_folder(self) -> str:
        """Return what to type for the many files that a hook names."""
        if len({Path(path).is_absolute() for path in self.paths}) > 1:
            return "."
        return os.path.commonpath([Path(os.path.normpath(path)).parent for path in self.paths]) or "."


def sentences(report: Report, mode: Mode) -> Iterator[str]:
    """Yield what happened, in a few sentences."""
    summary = Summary.of(report)
    searched = count(summary.files, "file")
    noun = "training loop" if report.is_plain else "trial"
    if not summary.trials:
        yield f"No plain training loop in {searched}." if report.is_plain else nothing_found(summary.files)
    elif summary.already == summary.trials:
        yield f"{count(summary.trials, noun)} in {searched}, on DeepSpeed already."
    else:
        done = "converted" if mode is Mode.WRITE else "to convert"
        parts = [
            f"{summary.converted} {done}" if summary.converted else "",
            f"{summary.blocked} blocked" if summary.blocked else "",
            f"{summary.unsupported} of an API too old to convert" if summary.unsupported else "",
            f"{summary.already} on DeepSpeed already" if summary.already else "",
            f"{summary.skipped} skipped by a comment" if summary.skipped else "",
            f"{summary.declined} declined" if summary.declined else "",
        ]
        yield f"{count(summary.trials, noun)} in {searched}: {', '.join(filter(None, parts))}."
    changes = [
        f"{count(summary.changed, 'file')} {'changed' if mode is Mode.WRITE else 'to change'}"
        if summary.changed
        else "",
        f"{summary.created} {'created' if mode is Mode.WRITE else 'to create'}" if summary.created else "",
    ]
    review = summary.review - summary.markers
    notes = [
        f"{count(review, 'finding')} to review" if review else "",
        f"{count(summary.ignored, 'finding')} ignored" if summary.ignored else "",
        f"{count(summary.markers, 'marker')} left in the code" if summary.markers else "",
        f"{count(summary.errors, 'error')}" if summary.errors else "",
    ]
    if any(changes + notes):
        yield f"{', '.join(filter(None, changes + notes))}."
    if mode is Mode.CHECK and exit_code(report, mode) == EXIT_WORK_REMAINS:
        todo = summary.converted + summary.blocked + summary.unsupported
        yield f"Check failed: {count(todo, noun)} to convert or unblock." if todo else "Check failed."


def _config(report: Report) -> str | None:
    """Return the experiment config to try a conversion with: one without a search, judged by its name."""
    configs = [file.path for file in report.files if file.kind is FileKind.EXPERIMENT and file.to_write]
    chosen = min(configs, key=lambda path: not path.name.startswith("const"), default=None)
    return None if chosen is None else str(chosen)


def _proof(report: Report) -> list[str]:
    """Return the command that trains the original beside the conversion, its config or script last; else nothing."""
    if not report.is_plain:
        config = _config(report)
        return [] if config is None else ["ds-verify", config]
    training = (file for file in report.files if file.trials or any(f.code == _RANKS_CODE for f in file.findings))
    scripts = (file.path for file in training if file.to_write and _SCRIPT.search(file.after or b""))
    return next((["ds-verify", "--plain", str(script)] for script in scripts), [])


def memory_lines(report: Report) -> Iterator[str]:
    """Yield what training takes in memory with each option, as a small table, once for trials of the same figures."""
    trials: dict[str, dict[str, None]] = {}
    for _, finding in report.findings(Severity.CONVERTED):
        if finding.code == MEMORY_CODE:
            trials.setdefault(finding.message, {})[finding.trial or ""] = None
    for message, names in list(trials.items())[:_MANY_TRIALS]:
        unit, _, sizes = message.partition(": ")
        whose = f"{visible(', '.join(list(names)[:_MANY_TRIALS]))}: " if len(trials) > 1 else ""
        yield f"{whose}{unit}"
        rows = [size.split(" ", 1) for size in sizes.split("; ")]
        width = max(len(number) for number, _ in rows)
        yield from (f"    {number:>{width}}  {words}" for number, words in rows)


def _outside(report: Report) -> list[str]:
    """Return the folder that all written files share when it is not in the current one; else nothing."""
    common = os.path.commonpath([os.path.realpath(file.path.parent) for file in report.files if file.to_write])
    return [] if Path(common).is_relative_to(os.path.realpath(os.curdir)) else [common]


def next_steps(report: Report, mode: Mode, command: Command) -> Iterator[tuple[str, str]]:
    """Yield (why, command to type) pairs, the most useful first."""
    summary = Summary.of(report)
    writes = summary.changed + summary.created
    if mode is Mode.CHECK and (writes or summary.blocked or summary.unsupported):
        yield "to see it", command.line()
    config = _config(report)
    if mode is not Mode.WRITE and writes:
        yield "to apply it", command.line("--write")
    proof = _proof(report)
    if mode is Mode.PREVIEW and proof:
        yield "to see that it trains the same", visible(shlex.join(proof))
    if mode is Mode.WRITE and writes:
        # Without git there is nothing left to compare with.
        if proof and command.is_versioned(str(Path(os.path.realpath(proof[-1])).parent)):
            yield "to see that it trains the same", visible(shlex.join(proof))
        if config is not None:
            yield "to train it", visible(shlex.join(["ds-train", config]))
        if any(finding.help for _, finding in report.findings(Severity.REVIEW, Severity.BLOCKED)):
            yield "to see what is left to do", command.line("--check")
        yield "to undo it", visible(shlex.join(["ds-migrate", "--undo", *_outside(report)]))
    for severity in (Severity.BLOCKED, Severity.REVIEW):
        for _, finding in report.findings(severity):
            yield "to know more", f"ds-migrate --explain {finding.code}"
            return
