"""``--interactive``: each conversion is shown and accepted or declined as a whole, whatever files it has.

A trial that is converted in one file and not in another would run and train wrong, so files of one trial are one
question. What was accepted before ``quit`` is written.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ds_migrate.findings import FileKind, FileResult, FileStatus, Report, Severity, TrialStatus
from ds_migrate.report.counts import count
from ds_migrate.report.escaping import visible

HELP = """\
y  convert it
n  leave it as it is
a  convert it and all that follow
q  leave it and all that follow; what was accepted is written
e  edit the result first ($VISUAL or $EDITOR)
?  this help"""


class EditError(Exception):
    """The edited result cannot be taken; the message names the reason."""


@dataclass(frozen=True)
class Dialogue:
    """A conversation with a user: ``show`` a conversion, ``ask`` a question and get the line typed (EOFError ends
    the questions like ``q``), ``print`` a line, let files be edited (EditError when that fails)."""

    show: Callable[[Sequence[FileResult]], None]
    ask: Callable[[str], str]
    print: Callable[[str], None]
    edit: Callable[[Sequence[Path]], None]


def decide(report: Report, dialogue: Dialogue) -> None:
    """Ask about each conversion, and take those that are declined out of the report."""
    waiting = report.conversions()
    answer = ""
    for number, files in enumerate(waiting, 1):
        if answer not in ("a", "q"):
            dialogue.show(files)
            answer = _answer(dialogue, f"{_subject(files)}? [y,n,a,q,e,?] ({number}/{len(waiting)}) ", files)
        if answer in ("n", "q"):
            _decline(files)


def _answer(dialogue: Dialogue, question: str, files: Sequence[FileResult]) -> str:
    while True:
        try:
            answer = dialogue.ask(question).strip().lower()[:1]
        except EOFError:
            return "q"
        if answer in ("y", "n", "a", "q"):
            return answer
        if answer != "e":
            dialogue.print(HELP)
            continue
        try:
            _edit(files, dialogue.edit)
        except EditError as error:
            dialogue.print(f"the edit was not taken: {error}")
        else:
            dialogue.show(files)


def _subject(files: Sequence[FileResult]) -> str:
    trials = [t.name for file in files for t in file.trials if t.status is TrialStatus.CONVERTED]
    if not trials:
        return f"Change {', '.join(visible(str(file.path)) for file in files)}"
    return f"Convert {' and '.join(map(visible, trials))} ({count(len(files), 'file')})"


def _decline(files: Sequence[FileResult]) -> None:
    """Leave the files as they are, and drop the findings about what would have changed in them."""
    for file in files:
        file.after, file.status = None, FileStatus.UNCHANGED
        file.findings = [f for f in file.findings if f.severity in (Severity.BLOCKED, Severity.ERROR)]
        file.trials = [
            replace(trial, status=TrialStatus.DECLINED) if trial.status is TrialStatus.CONVERTED else trial
            for trial in file.trials
        ]


def _edit(files: Sequence[FileResult], edit: Callable[[Sequence[Path]], None]) -> None:
    """Let the results be edited, all or none. Raises EditError."""
    with tempfile.TemporaryDirectory(prefix="ds-migrate-") as folder:
        copies = []
        for number, file in enumerate(files):
            copy = Path(folder, str(number), file.path.name)
            copy.parent.mkdir()
            copy.write_bytes(file.after or b"")
            copies.append(copy)
        edit(copies)
        edited = [copy.read_bytes() for copy in copies]
    for file, data in zip(files, edited, strict=True):
        if file.kind is FileKind.PYTHON:
            try:
                compile(data, str(file.path), "exec", dont_inherit=True)
            except (SyntaxError, ValueError) as error:
                raise EditError(f"{visible(str(file.path))} does not parse: {error}") from error
    for file, data in zip(files, edited, strict=True):
        file.after = data


def ask(question: str) -> str:
    """Return the line typed. Raises EOFError at the end of the input."""
    print(question, end="", flush=True)  # input() would put it on stderr
    return input()


def open_editor(paths: Sequence[Path]) -> None:
    """Run the user's editor until it ends. Raises EditError."""
    editor = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi")
    try:
        status = subprocess.run([*editor, *map(str, paths)], check=False).returncode
    except OSError as error:
        raise EditError(f"{editor[0]} cannot be started ({error.strerror}); set EDITOR") from error
    if status:
        raise EditError(f"{editor[0]} ended with {status}")
