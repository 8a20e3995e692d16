"""A search as one HTML file: its best trial, each trial's curve over the rungs, parallel coordinates, all trials."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from ds_migrate.report.html_parts import code, document, table

from trial_runtime._svg_curves import curves
from trial_runtime.search.config import Search
from trial_runtime.train.search.result import TrialResult, best_of, differing

_WIDTH, _HEIGHT, _EDGE = 920, 260, 40

_STYLE = """
body { max-width: 1120px; } table { border-collapse: collapse; } .wide { overflow-x: auto; }
th { text-align: left; font-weight: 500; color: var(--quiet); } th, td { padding: 4px 16px 4px 0;
  border-bottom: 1px solid var(--line); white-space: nowrap; } td.n, th.n { text-align: right; }
.chart { background: var(--box); padding: 12px; margin: 12px 0; } svg { width: 100%; height: auto; display: block; }
polyline { fill: none; stroke-width: 1.2; }
.grid { stroke: var(--line); } .tick { fill: var(--quiet); font-size: 11px; }
.other { stroke: #3b6fd4; opacity: .45; } .best { stroke: #e08a00; stroke-width: 2.4; }
"""


def render(
    found: Sequence[TrialResult], search: Search, metric: str, rung_reports: Mapping[int, Mapping[int, float]]
) -> str:
    """Return the page.

    Args:
        found: all trials.
        search: the method.
        metric: the searcher's metric.
        rung_reports: for each trial the metric at the rungs that it reached, by their lengths.
    """
    return document(f"search: {metric}", _STYLE, _body(list(found), search, metric, rung_reports))


def _body(
    found: list[TrialResult], search: Search, metric: str, rung_reports: Mapping[int, Mapping[int, float]]
) -> Iterator[str]:
    best = best_of(found, search, metric)
    kind = f" ({search.generation})" if search.generation else ""
    yield f"<h1>{escape(search.name)}{kind}: {len(found)} trials by {code(metric)}</h1>"
    if best is not None and best.best is not None:
        yield (
            f"<p>Best: trial {best.assignment.trial}, {best.best.number(metric):.6g} after {best.best.batches:,} "
            "batches; it is drawn thick.</p>"
        )
    ordered = sorted(found, key=lambda each: each is best)  # the best on top
    lines = [
        (f"trial {each.assignment.trial}", "best" if each is best else "other", each.points(metric)) for each in ordered
    ]
    yield f'<div class="chart"><h2>{code(metric)} at each validation</h2>{curves(lines)}</div>'
    lengths = sorted({length for reports in rung_reports.values() for length in reports})
    if len(lengths) > 1:
        rungs = {f"{length} {search.unit}": length for length in lengths}
        reached = [
            ({"trial": trial, **{name: reports.get(length) for name, length in rungs.items()}}, each is best)
            for each in ordered
            if (reports := rung_reports.get(trial := each.assignment.trial))
        ]
        drawn = _parallel(list(rungs), reached, one_scale=True)
        yield f'<div class="chart"><h2>{code(metric)} at each rung</h2>{drawn}</div>'
    names = differing(found)
    if names:
        rows = [(each.row(metric), each is best) for each in ordered]
        yield f'<div class="chart"><h2>Hyperparameters</h2>{_parallel([*names, metric], rows)}</div>'
    columns = ["trial", metric, "batches", *names]
    sign = 1 if search.smaller_is_better else -1
    cells = [each.row(metric) for each in found]
    cells.sort(key=lambda row: math.inf if row[metric] is None else sign * row[metric])
    yield table([code(name) for name in columns], [[_shown(row.get(name)) for name in columns] for row in cells])


def _parallel(names: Sequence[str], rows: Sequence[tuple[Mapping[str, Any], bool]], *, one_scale: bool = False) -> str:
    """Return parallel coordinates: one axis a name, one line a trial; values that are no numbers are spread evenly.

    Args:
        names: of the axes.
        rows: for each trial its values by name, and whether it is the best.
        one_scale: all axes have the same ends.
    """
    gap = (_WIDTH - 2 * _EDGE) / max(len(names) - 1, 1)
    columns = {name: [row.get(name) for row, _ in rows] for name in names}
    if one_scale:
        places, top, foot = _places([value for column in columns.values() for value in column])
        count = len(rows)
        heights = {name: (places[i * count : (i + 1) * count], top, foot) for i, name in enumerate(names)}
    else:
        heights = {name: _places(column) for name, column in columns.items()}
    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">']
    for index, name in enumerate(names):
        across = _EDGE + index * gap
        anchor = "start" if index == 0 else "end" if index == len(names) - 1 else "middle"
        parts.append(f'<line class="grid" x1="{across:.1f}" x2="{across:.1f}" y1="30" y2="{_HEIGHT - 20}"/>')
        parts.append(f'<text class="tick" x="{across:.1f}" y="12" text-anchor="{anchor}">{escape(name)}</text>')
        for edge, text in ((26, heights[name][1]), (_HEIGHT - 6, heights[name][2])):
            parts.append(f'<text class="tick" x="{across:.1f}" y="{edge}" text-anchor="{anchor}">{escape(text)}</text>')
    for number, (row, is_best) in enumerate(rows):
        points = [
            (f"{_EDGE + index * gap:.1f}", f"{place:.1f}")
            for index, name in enumerate(names)
            if (place := heights[name][0][number]) is not None
        ]
        kind, title = "best" if is_best else "other", f"<title>trial {row['trial']}</title>"
        path = " ".join(map(",".join, points))
        parts.append(f'<polyline class="{kind}" points="{path}">{title}</polyline>')
        if one_scale:
            parts.extend(f'<circle class="{kind}" cx="{x}" cy="{y}" r="3">{title}</circle>' for x, y in points)
    return "".join([*parts, "</svg>"])


def _places(values: Sequence[Any]) -> tuple[list[float | None], str, str]:
    """Return the height of each value on its axis, and the texts at the axis' top and foot."""
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) < len([value for value in values if value is not None]) or not numbers:
        kinds = list(dict.fromkeys(repr(value) for value in values))
        scale: dict[str, float] = {kind: index / max(len(kinds) - 1, 1) for index, kind in enumerate(kinds)}
        return [_height(scale[repr(value)]) for value in values], kinds[-1], kinds[0]
    low, high = min(numbers), max(numbers)
    is_log = low > 0 and high / low > 50
    ends = (math.log(low), math.log(high)) if is_log else (low, high)

    def place(value: Any) -> float | None:
        if value is None:
            return None
        shown = math.log(value) if is_log else value
        return _height((shown - ends[0]) / ((ends[1] - ends[0]) or 1))

    return [place(value) for value in values], f"{high:.4g}", f"{low:.4g}"


def _height(share: float) -> float:
    return _HEIGHT - 20 - share * (_HEIGHT - 50)


def _shown(value: Any) -> str:
    return escape(f"{value:.6g}" if isinstance(value, float) else "" if value is None else str(value))
