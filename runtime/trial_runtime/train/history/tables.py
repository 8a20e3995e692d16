"""Runs as tables for a terminal."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from ds_migrate.report.escaping import visible
from rich.console import Console
from rich.table import Table
from rich.text import Text

from trial_runtime.train.history.records import Run
from trial_runtime.train.run.paths import relative_path

_STYLES = {"completed": "green", "failed": "red", "stopped": "yellow", "running": "cyan"}


def print_runs(runs: Sequence[Run]) -> None:
    """Print one line for each run: status, batches, best value of its metric, checkpoints, age."""
    metrics = {run.metric for run in runs}
    table = _table(
        "run", "status", ">batches", *(["metric"] if len(metrics) > 1 else []), ">best", ">at", ">saved", ">"
    )
    for run in runs:
        best = run.best()
        _add_row(
            table,
            str(relative_path(run.path)),
            Text(run.status, _STYLES.get(run.status, "")),
            f"{run.batches:,}",
            *([run.metric or ""] if len(metrics) > 1 else []),
            "" if best is None else f"{best.number(run.metric or ''):.5g}",
            "" if best is None else f"{best.batches:,}",
            shown_size(sum(checkpoint.size for checkpoint in run.checkpoints)) if run.checkpoints else "-",
            Text(shown_age(time.time() - run.ended), "dim"),
        )
    _console().print(table)


def print_run(run: Run) -> None:
    """Print all that a run directory records."""
    console = _console()
    facts = _table("", "", header=False)
    best = run.best()
    rows: list[tuple[str, object]] = [
        ("run", relative_path(run.path)),
        ("status", run.status),
        ("seed", run.seed),
        ("trained", f"{run.batches:,} batches in {shown_duration(run.ended - run.started)}"),
        (
            "best",
            "" if best is None else f"{run.metric} {best.number(run.metric or ''):.6g} at {best.batches:,} batches",
        ),
        *((name, _shown(value)) for name, value in run.hparams.items()),
    ]
    for name, value in rows:
        _add_row(facts, Text(name, "dim"), str(value))
    console.print(facts)
    if run.checkpoints:
        best_one = run.best_checkpoint()
        table = _table("checkpoint", ">batches", ">size", "")
        for checkpoint in run.checkpoints:
            mark = Text("best", "green") if checkpoint == best_one else Text("")
            _add_row(
                table, str(relative_path(checkpoint.path)), f"{checkpoint.batches:,}", shown_size(checkpoint.size), mark
            )
        console.print()
        console.print(table)


def print_comparison(runs: Sequence[Run], metric: str) -> None:
    """Print what differs between runs, and their best and last values of each validation metric."""
    table = _table("", *(f">{name}" for name in short_names(runs)))
    for name in different_hparams(runs):
        _add_row(table, Text(name, "dim"), *(_shown(run.hparams.get(name)) for run in runs))
    if len({run.seed for run in runs}) > 1:
        _add_row(table, Text("seed", "dim"), *(str(run.seed) for run in runs))
    _add_row(table, Text("batches", "dim"), *(f"{run.batches:,}" for run in runs))
    bests = [run.best(metric) for run in runs]
    _add_row(
        table,
        Text(f"best {metric}", "bold"),
        *("" if best is None else f"{best.number(metric):.6g} at {best.batches:,}" for best in bests),
    )
    names = dict.fromkeys(name for run in runs if run.validations for name in run.validations[-1].metrics)
    for name in names:
        if name not in ("batches", "epochs"):
            last = [run.validations[-1].number(name) if run.validations else None for run in runs]
            _add_row(table, Text(f"last {name}", "dim"), *("" if value is None else f"{value:.6g}" for value in last))
    _console().print(table)


def short_names(runs: Sequence[Run]) -> list[str]:
    """Return the runs' paths without the folders that all of them have in common."""
    paths = [relative_path(run.path).parts for run in runs]
    shared = 0
    while len(paths) > 1 and len({parts[: shared + 1] for parts in paths}) == 1 and len(paths[0]) > shared + 1:
        shared += 1
    return ["/".join(parts[shared:]) for parts in paths]


def different_hparams(runs: Sequence[Run]) -> list[str]:
    """Return the hyperparameters that are not the same in all runs."""
    names = dict.fromkeys(name for run in runs for name in run.hparams)
    return [name for name in names if len({repr(run.hparams.get(name)) for run in runs}) > 1]


def shown_size(size: float) -> str:
    """Return bytes as a short text."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit in ("B", "KiB") else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def shown_duration(seconds: float) -> str:
    """Return seconds as hours, minutes and seconds."""
    minutes, rest = divmod(round(max(seconds, 0)), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def shown_age(seconds: float) -> str:
    """Return how long ago something was."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return "now"


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else "" if value is None else str(value)


def _table(*names: str, header: bool = True) -> Table:
    table = Table(box=None, pad_edge=False, show_header=header, header_style="dim", padding=(0, 2, 0, 0))
    for name in names:
        table.add_column(
            visible(name.removeprefix(">")), justify="right" if name.startswith(">") else "left", no_wrap=True
        )
    return table


def _add_row(table: Table, *cells: str | Text) -> None:
    """Add a row in which nothing that a file holds reaches the terminal as a control character."""
    safe = (Text(visible(cell.plain), cell.style) if isinstance(cell, Text) else visible(cell) for cell in cells)
    table.add_row(*safe)


def _console() -> Console:
    return Console(highlight=False, markup=False, emoji=False, soft_wrap=False)
