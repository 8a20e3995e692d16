"""Writing a report's changes to disk, whole conversions or nothing, and taking the last run back.

Everything is prepared before anything is replaced: files are compared with what was read, new content goes to a
temporary file in the same folder and to the disk, the journal is kept. Then come the renames, new files before those
that need them. When one fails, its conversion is put back as it was and the other conversions continue; an interrupt
puts everything back. What a killed run left, half a conversion and temporary files, the next run restores and removes.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType

from ds_migrate.files import atomic, git, journal
from ds_migrate.files.regular_file import read_file
from ds_migrate.findings import FileResult, FileStatus, Finding, Report, Severity, TrialStatus, group_by_unit
from ds_migrate.rules.codes import Code

NOT_WRITTEN = Code.NOT_WRITTEN


class RefusedError(Exception):
    """A file must not or cannot be written; the message names the reason and what to do."""


def apply(report: Report, here: Path) -> None:
    """Write every change of ``report``; what could not be written becomes an error finding in it.

    ``here`` (absolute) is where the run was started: the journal is kept in its work tree. A signal to stop is obeyed
    once everything is as it was before.
    """
    waiting = [Target(file, Path(os.path.realpath(file.path))) for file in report.files if file.to_write]
    with _signals_held() as stopped:
        for target in waiting:
            if target.file.after is None:
                continue  # given up with another file of its conversion
            try:
                target.prepare()
            except RefusedError as refused:
                _give_up(target, waiting, str(refused))
        ready = [target for target in waiting if target.temporary is not None]
        try:
            if ready:
                _commit(ready, here, stopped)
        finally:
            for target in ready:
                target.drop_temporary()


@dataclass(eq=False)
class Target:
    """One file to write. ``temporary`` holds its new content until the rename; ``status`` is None for a new file."""

    file: FileResult
    path: Path
    temporary: Path | None = None
    written: bool = False
    status: os.stat_result | None = field(default=None, repr=False)

    def prepare(self) -> None:
        """Check the file and put its new content beside it. Raises RefusedError."""
        assert self.file.after is not None
        self.check_unchanged()
        try:
            if self.file.before is not None:
                self.status = os.stat(self.path)  # noqa: PTH116
                if not os.access(self.path, os.W_OK):
                    raise RefusedError(
                        "cannot be written: it is read-only; give yourself the right to write it and run again"
                    )
            self.temporary = atomic.write_temporary(self.path.parent, self.file.after, self.status)
        except OSError as error:
            raise RefusedError(f"cannot be written: {_reason(error)}") from error

    def check_unchanged(self) -> None:
        """Raises RefusedError when the disk no longer holds what this run read."""
        now = _content(self.path)
        if now == self.file.before:
            return
        if self.file.before is None:
            raise RefusedError("would be created, but exists since this run began: run again")
        raise RefusedError(f"{'is gone' if now is None else 'changed'} since this run read it: run again")

    def commit(self) -> None:
        """Rename the new content into place. Raises RefusedError."""
        assert self.temporary is not None
        self.check_unchanged()
        try:
            os.replace(self.temporary, self.path)  # noqa: PTH105
        except OSError as error:
            raise RefusedError(f"cannot be written: {_reason(error)}") from error
        self.temporary, self.written = None, True

    def put_back(self) -> None:
        """The file as it was before this run."""
        if self.written:
            restore(self.path, self.file.before)
            self.written = False

    def drop_temporary(self) -> None:
        if self.temporary is not None:
            with suppress(OSError):
                self.temporary.unlink()
            self.temporary = None


def uncommitted(report: Report) -> list[Path]:
    """Existing files to write whose present content git could not bring back; empty outside git."""
    trees: dict[str, list[str]] = {}
    for file in report.files:
        if file.to_write and file.before is not None:
            real = os.path.realpath(file.path)
            tree = git.work_tree(str(Path(real).parent))
            if tree is not None:
                trees.setdefault(tree, []).append(real)
    return [Path(name) for tree, files in trees.items() for name in git.uncommitted(tree, files)]


def recover(entry: journal.Entry) -> None:
    """Restore what a killed run left half written, and remove its temporary files.

    Raises RefusedError where such a file was changed since.
    """
    undo(entry)
    atomic.sweep({change.path.parent for change in entry.changes})


def undo(entry: journal.Entry) -> list[Path]:
    """Put back what a run wrote and forget the run; the files put back. Raises RefusedError, naming changed files."""
    changed: list[str] = []
    waiting: list[journal.Change] = []
    for change in entry.changes:
        now = _content(change.path)
        if now == change.before:
            continue  # put back already, by hand or by an undo that was stopped
        if now is None or journal.fingerprint(now) != change.after_hash:
            changed.append(f"{change.path} {'is gone' if now is None else 'changed'} since")
        waiting.append(change)
    if changed:
        raise RefusedError("nothing was undone: " + "; ".join(changed))
    with _signals_held():
        try:
            entry.reopen()
        except OSError as error:
            raise RefusedError(f"the journal {entry.file} cannot be written: {_reason(error)}") from error
        for change in sorted(waiting, key=lambda change: change.before is None):  # new files last: others need them
            try:
                restore(change.path, change.before)
            except OSError as error:
                raise RefusedError(f"{change.path} cannot be put back: {_reason(error)}; run --undo again") from error
        entry.forget()
    return [change.path for change in waiting]


def restore(path: Path, before: bytes | None) -> None:
    """Make ``path`` hold ``before`` again, with its mode, or remove it when it is None. Raises OSError."""
    if before is None:
        path.unlink(missing_ok=True)
    else:
        atomic.replace(path, before, os.stat(path))  # noqa: PTH116
    atomic.sync_folder(path.parent)


def _commit(ready: Sequence[Target], here: Path, stopped: list[int]) -> None:
    """Rename all prepared files, conversion by conversion."""
    changes = [(target.path, target.file.before, target.file.after or b"") for target in ready]
    try:
        root = journal.home_of(here, [target.path for target in ready])
        entry = journal.record(root, changes)
    except journal.JournalError as error:
        for target in ready:
            _fail(target.file, f"was not written: {error}")
        return
    new_first = sorted(ready, key=lambda target: target.file.before is not None)
    for unit in _units(new_first):
        if stopped:
            break
        try:
            for target in unit:
                target.commit()
        except RefusedError as refused:
            _put_back(unit)
            _give_up(target, ready, str(refused))
    for folder in {target.path.parent for target in ready}:
        atomic.sync_folder(folder)
    if stopped:
        _put_back(ready)
    entry.finish({target.path for target in ready if target.written})


def _put_back(targets: Sequence[Target]) -> None:
    """Undo renames; what even this cannot restore stays in the journal and is reported."""
    for target in targets:
        try:
            target.put_back()
        except OSError as error:
            _fail(target.file, f"could not be put back as it was: {_reason(error)}; run ds-migrate --undo")


def _give_up(failed: Target, targets: Sequence[Target], reason: str) -> None:
    """Report ``failed``, and drop the rest of its conversion: half of one would be worse than none."""
    unit = next(unit for unit in _units(targets) if failed in unit)
    for target in unit:
        target.drop_temporary()
        if target is failed:
            _fail(target.file, reason)
        elif target.file.status is not FileStatus.ERROR:
            _fail(target.file, f"was not written, because it belongs together with {failed.file.path}")


def _fail(file: FileResult, message: str) -> None:
    file.status = FileStatus.ERROR
    file.after = None
    file.findings.append(Finding(NOT_WRITTEN, Severity.ERROR, 0, message))
    file.trials = [
        replace(trial, status=TrialStatus.BLOCKED) if trial.status is TrialStatus.CONVERTED else trial
        for trial in file.trials
    ]


def _units(targets: Sequence[Target]) -> list[list[Target]]:
    return group_by_unit(targets, lambda target: target.file)


def _content(path: Path) -> bytes | None:
    """Return what the file holds now; None when it is not there. Raises RefusedError when it cannot be read."""
    try:
        return read_file(str(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RefusedError(f"{path} cannot be read any more: {_reason(error)}") from error


def _reason(error: OSError) -> str:
    return (error.strerror or type(error).__name__).lower()


@contextmanager
def _signals_held() -> Iterator[list[int]]:
    """Signals to stop are kept (in the list) while the block runs, and obeyed right after it."""
    stopped: list[int] = []

    def keep(number: int, _frame: FrameType | None) -> None:
        stopped.append(number)

    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return
    held = {number: signal.signal(number, keep) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, handler in held.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if stopped:
            signal.raise_signal(stopped[0])
