"""The verification on a terminal: a progress bar while it runs, a table and one line of verdict at its end."""

from __future__ import annotations

from collections.abc import Callable

from ds_migrate.report.escaping import visible
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from ds_verify import runs
from ds_verify.record import Key
from ds_verify.report import Verification, memory, speed
from ds_verify.verdict import Outcome, advice, plural

_SHOWN = 5


def progress_bar(console: Console, unit: str) -> Progress:
    """Return a bar that shows which run trains; where stderr is not a terminal, lines take its place."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(plural(unit)),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def progress_reporter(bar: Progress, unit: str) -> Callable[[runs.Progress], None]:
    """Return a function that shows a verification's progress on `bar`."""
    task = bar.add_task("preparing both sides", total=None)
    shown: set[str] = set()

    def report(progress: runs.Progress) -> None:
        description = f"run {progress.number} of {progress.runs}: {progress.run}"
        bar.update(task, description=description, completed=progress.trained, total=progress.total)
        if not bar.console.is_terminal and progress.run not in shown:
            shown.add(progress.run)
            bar.console.print(f"{description}, {progress.trained} of {progress.total} {plural(unit)}", soft_wrap=True)

    return report


def show(console: Console, found: Verification) -> None:
    """Print errors, the table of comparisons, what parted, what it costs, and the verdict."""
    for title, text in found.tracebacks:
        console.print(Text(f"{title}:\n{visible_lines(text)}\n", style="red"), soft_wrap=True)
    selection = found.selection
    console.print(
        Text(visible(f"{found.subject:<9}{selection.trial}" + (f" ({selection.config})" if selection.config else "")))
    )
    console.print(Text(f"sides    {visible(found.sides.how)}"))
    if selection.picked:
        values = ", ".join(f"{name}={value}" for name, value in selection.picked.items())
        console.print(Text(f"hparams  {visible(values)} (first values of search spaces; --hparam picks others)"))
    for note in found.notes:
        console.print(Text(f"note     {visible(note)}"), soft_wrap=True)
    console.print()
    if found.outcomes:
        console.print(_comparisons(found))
    for outcome in found.outcomes:
        if outcome.differences:
            console.print(_differences(outcome))
    if any(figures for _, figures, _ in found.costs()):
        console.print()
        console.print(_costs(found))
    console.print()
    for label, _, reason in found.costs():
        if reason and reason not in found.headline:
            console.print(Text(f"{label} did not train: {visible(reason)}", style="yellow"), soft_wrap=True)
    is_bitwise = all(outcome.same and outcome.largest and outcome.largest[0] == 0 for outcome in found.outcomes)
    if (noise := _noise(found)) and not is_bitwise:
        most = ", ".join(sorted(noise, key=lambda name: -noise[name])[:_SHOWN])
        more = f" and {len(noise) - _SHOWN} more" if len(noise) > _SHOWN else ""
        moved = f"one rounding step in the initial weights changes them by up to {max(noise.values()):.1e}"
        line = f"note: sensitive to rounding, so they cannot be compared strictly ({moved}): {most}{more}"
        console.print(Text(visible(line), style="dim"), soft_wrap=True)
    for file, finding in found.explanations:
        line = f"may explain it: {file}:{finding.line} {finding.code} {finding.message}"
        console.print(Text(visible(line), style="yellow"))
    style = "bold red" if not found.same else "bold green" if found.is_complete and not found.unseen else "bold yellow"
    console.print(Text(visible(found.headline), style=style), soft_wrap=True)
    if step := advice(found.outcomes):
        console.print(Text(f"next: {step}"), soft_wrap=True)


def visible_lines(text: str) -> str:
    """Return lines of unknown origin, made safe to show."""
    return "\n".join(visible(line) for line in text.splitlines())


def _comparisons(found: Verification) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    where = "where" if any(outcome.largest and outcome.largest[0] for outcome in found.outcomes) else ""
    for heading in ("", "values", "largest gap", "limit", where, ""):
        table.add_column(heading, justify="right" if heading in ("values", "largest gap", "limit") else "left")
    for outcome in found.outcomes:
        gap, key, limit = outcome.largest or (None, None, None)
        verdict = Text("same", "green") if outcome.same else Text("different", "bold red")
        table.add_row(
            outcome.label,
            f"{outcome.values:,}" if outcome.values else "-",
            "-" if gap is None else "0 (bitwise)" if gap == 0 else f"{gap:.1e}",
            "-" if limit is None else f"{limit:.1e}",
            Text("" if not gap or key is None else visible(_place(key, outcome.unit))),
            verdict,
        )
    return table


def _place(key: Key, unit: str) -> str:
    return f"{key}, {unit} {key.step}" if key.step else str(key)


def _differences(outcome: Outcome) -> Table:
    table = Table(
        box=None,
        pad_edge=False,
        header_style="dim",
        title=f"\nfirst differences with {outcome.label}",
        title_justify="left",
    )
    for heading in (outcome.unit, "gap", "limit", "value"):
        table.add_column(heading, justify="left" if heading == "value" else "right")
    for difference in outcome.differences[:_SHOWN]:
        table.add_row(
            str(difference.key.step), f"{difference.gap:.1e}", f"{difference.limit:.1e}",
            Text(visible(f"{difference.key}: {difference.reason}")),
        )  # fmt: skip
    if len(outcome.differences) > _SHOWN:
        table.add_row("", "", "", Text(f"and {len(outcome.differences) - _SHOWN} more", style="dim"))
    return table


def _costs(found: Verification) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("", no_wrap=True)
    table.add_column("peak memory a rank", justify="right")
    measured = [(label, figures) for label, figures, _ in found.costs() if figures]
    speeds = [speed(figures) for _, figures in measured]
    if set(speeds) - {"-"}:
        table.add_column("speed", justify="right")
    for (label, figures), each in zip(measured, speeds, strict=True):
        table.add_row(label, memory(figures), *([each] if set(speeds) - {"-"} else []))
    return table


def _noise(found: Verification) -> dict[str, float]:
    """Return the final weights that rounding alone decides, with how far the control moved them."""
    spread: dict[str, float] = {}
    for outcome in found.outcomes:
        for name, largest in outcome.noise.items():
            spread[name] = max(largest, spread.get(name, 0.0))
    return spread
