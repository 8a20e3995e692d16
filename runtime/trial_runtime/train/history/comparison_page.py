"""The comparison of runs as one HTML file: what differs, and a curve for each metric."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from ds_migrate.report.html_parts import code, document, table

from trial_runtime._run_metrics import points
from trial_runtime._svg_curves import curves
from trial_runtime.train.history.records import Run
from trial_runtime.train.history.tables import different_hparams, short_names
from trial_runtime.train.run.paths import relative_path

_COLORS = ("#3b6fd4", "#e08a00", "#2e9e5b", "#c2477f", "#7a5fd0", "#8a7a3d")

_STYLE = """
body { max-width: 1120px; } table { border-collapse: collapse; } .wide { overflow-x: auto; }
th { text-align: left; font-weight: 500; color: var(--quiet); } th, td { padding: 4px 16px 4px 0;
  border-bottom: 1px solid var(--line); } td.n, th.n { text-align: right; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(440px, 100%), 1fr)); gap: 20px; }
.chart { background: var(--box); padding: 12px; } h3 { font-size: 14px; margin: 0 0 6px; }
svg { width: 100%; height: auto; display: block; } polyline { fill: none; stroke-width: 1.6; }
.grid { stroke: var(--line); } .tick { fill: var(--quiet); font-size: 11px; }
.key { display: inline-block; width: 18px; height: 4px; margin: 0 6px 3px 0; }
"""


def render(runs: Sequence[Run], metric: str) -> str:
    """Return the page."""
    style = _STYLE + "".join(
        f".r{index} {{ stroke: {color}; color: {color}; }} .key.r{index} {{ background: {color}; }}\n"
        for index, color in enumerate(_COLORS)
    )
    return document("ds-train runs compare", style, _body(runs, metric))


def _body(runs: Sequence[Run], metric: str) -> Iterator[str]:
    yield "<h1>Runs compared</h1>"
    names = [
        f'<span class="key r{index % len(_COLORS)}"></span>{code(name)}' for index, name in enumerate(short_names(runs))
    ]
    rows = [[code(name), *(escape(str(run.hparams.get(name, ""))) for run in runs)] for name in different_hparams(runs)]
    rows.append(["batches", *(f"{run.batches:,}" for run in runs)])
    bests = [run.best(metric) for run in runs]
    rows.append(
        [
            f"best {code(metric)}",
            *("" if best is None else f"{best.number(metric):.6g} at {best.batches:,}" for best in bests),
        ]
    )
    yield table(["", *names], rows, range(1, len(runs) + 1))
    yield '<div class="charts">'
    for group in ("validation", "training"):
        for name in _metrics(runs, group):
            lines = []
            for index, run in enumerate(runs):
                reports = [report for report in run.reports if report.group == group]
                lines.append((str(relative_path(run.path)), f"r{index % len(_COLORS)}", points(reports, name)))
            yield f'<div class="chart"><h3>{group}: {escape(name)}</h3>{curves(lines)}</div>'
    yield "</div>"


def _metrics(runs: Sequence[Run], group: str) -> list[str]:
    found = dict.fromkeys(
        name
        for run in runs
        for report in run.reports
        if report.group == group
        for name in report.metrics
        if report.number(name) is not None
    )
    return [name for name in found if name not in ("batches", "epochs")]
