"""Conversions that ``--write`` would make, for the formats of other tools: one each, with a position and its files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ds_migrate.findings import FileResult, Report, TrialResult, TrialStatus
from ds_migrate.report.counts import count
from ds_migrate.report.escaping import visible
from ds_migrate.report.summary import Mode
from ds_migrate.rules.codes import Code

CODE = Code.PYTORCH_TRIAL


@dataclass(frozen=True)
class Waiting:
    """``file`` and ``line`` are where its first trial begins, ``files`` all that it changes or creates."""

    message: str
    file: FileResult
    line: int
    files: Sequence[FileResult]


def waiting(report: Report, mode: Mode) -> Iterator[Waiting]:
    """Yield what a preview or a check finds to do; nothing once it is written."""
    if mode is Mode.WRITE:
        return
    for files in report.conversions():
        trials = [(file, trial) for file in files for trial in file.trials if trial.status is TrialStatus.CONVERTED]
        file, line = (trials[0][0], trials[0][1].line) if trials else (files[0], 1)
        yield Waiting(_message([trial for _, trial in trials], files), file, line, files)


def _message(trials: Sequence[TrialResult], files: Sequence[FileResult]) -> str:
    names = " and ".join(visible(trial.name) for trial in trials)
    if not names:
        return f"{count(len(files), 'file')} would change with a trial that is converted already"
    noun = "plain training loop" if all(trial.is_loop for trial in trials) else "PyTorchTrial"
    verb = f"is a {noun}" if len(trials) == 1 else f"are {noun}s"
    return f"{names} {verb} that ds-migrate --write converts ({count(len(files), 'file')})"
