"""The files of a check or of a write on a terminal: one row each, by folder, work first where there are many."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.text import Text

from ds_migrate.findings import FileResult, FileStatus, TrialResult, TrialStatus
from ds_migrate.report.counts import count
from ds_migrate.report.escaping import visible
from ds_migrate.report.patch import size
from ds_migrate.report.summary import Mode

MANY = 40  # rows of a list that is cut without --verbose
_QUIET = "bright_black"
_TRIAL = {  # before and after writing
    TrialStatus.CONVERTED: ("✔", "green", ("becomes a DeepSpeedTrial", "is a DeepSpeedTrial now")),
    TrialStatus.ALREADY_DEEPSPEED: ("✔", "green", ("is a DeepSpeedTrial already",) * 2),
    TrialStatus.DECLINED: ("–", "yellow", ("is left as it is",) * 2),
    TrialStatus.SKIPPED: ("–", "yellow", ("is skipped by a comment",) * 2),
    TrialStatus.BLOCKED: ("✖", "bold red", ("is blocked",) * 2),
    TrialStatus.UNSUPPORTED_API: ("✖", "bold red", ("is of an API that cannot be converted",) * 2),
}


def trial_state(trial: TrialResult, mode: Mode) -> tuple[str, str, str]:
    """Return the symbol of a trial, its style, and what the run does with it."""
    if mode is Mode.CHECK and trial.status is TrialStatus.CONVERTED:
        return "▲", "bold yellow", "would become a DeepSpeedTrial"
    symbol, style, texts = _TRIAL[trial.status]
    return symbol, style, texts[mode is Mode.WRITE]


def size_text(file: FileResult) -> Text:
    """Return how many lines a change adds and removes."""
    added, removed = size(file)
    text = Text(f"+{added}", "green")
    return text.append(f" −{removed}", "red") if removed else text


def file_rows(files: Sequence[FileResult], mode: Mode, is_complete: bool) -> Iterator[Text]:
    """Yield one row a file, or a trial of it, below the name of its folder.

    Without ``is_complete`` a long list has the files with work only, and of these the first ones.
    """
    shown = list(files)
    if len(shown) > MANY and not is_complete:
        shown = [file for file in files if _is_work(file)][:MANY]
    for folder, members in groupby(shown, lambda file: file.path.parent):
        yield Text(f"{visible(str(folder))}/", "bold")
        listed = list(members)
        names = max(len(visible(file.path.name)) for file in listed)
        sizes = [size_text(file) if file.to_write else Text() for file in listed]
        width = max(lines.cell_len for lines in sizes)
        for file, lines in zip(listed, sizes, strict=True):
            lines.pad_right(width - lines.cell_len + 2 * bool(width))
            yield from _rows(file, mode, Text.assemble(visible(file.path.name).ljust(names), "  ", lines))
    left = len(files) - len(shown)
    if left:
        yield Text(f"… and {count(left, 'file')} more: --verbose lists them", _QUIET)


def _rows(file: FileResult, mode: Mode, name: Text) -> Iterator[Text]:
    state = "new file" if file.before is None and file.to_write and mode is not Mode.WRITE else ""
    state = file.status.value if file.to_write and mode is Mode.WRITE else state
    if not file.trials:
        symbol, style = _symbol(file, mode)
        yield Text.assemble("  ", (symbol, style), " ", name, (state, _QUIET))
    for trial in file.trials:
        symbol, style, text = trial_state(trial, mode)
        yield Text.assemble("  ", (symbol, style), " ", name, visible(trial.name), (f" {text}", _QUIET))


def _symbol(file: FileResult, mode: Mode) -> tuple[str, str]:
    if file.status in (FileStatus.ERROR, FileStatus.BLOCKED):
        return "✖", "bold red"
    if file.to_write:
        return ("✔", "green") if mode is Mode.WRITE else ("▲", "bold yellow")
    return "–", _QUIET


def _is_work(file: FileResult) -> bool:
    refused = (TrialStatus.BLOCKED, TrialStatus.UNSUPPORTED_API)
    failed = file.status in (FileStatus.ERROR, FileStatus.BLOCKED)
    return file.to_write or failed or any(trial.status in refused for trial in file.trials)
