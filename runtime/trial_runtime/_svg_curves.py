"""Curves as inline SVG: both sides over one another, and the gap between them on a log scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

Points = Sequence[tuple[float, float]]

_WIDTH, _HEIGHT = 520, 150
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 8, 8, 20


def curves(lines: Sequence[tuple[str, str, Points]], *, log: bool = False, unit: str = "batch") -> str:
    """Return an SVG drawing.

    Args:
        lines: for each its name, its CSS class, and its points (step, value); points that are not finite are left out.
        log: a logarithmic vertical axis; values of 0 are drawn at its foot.
        unit: what a step is called.
    """
    kept = [(name, kind, [(x, y) for x, y in points if math.isfinite(y)]) for name, kind, points in lines]
    values = [y for _, _, points in kept for _, y in points if not log or y > 0]
    steps = [x for _, _, points in kept for x, _ in points]
    if not steps:
        return '<p class="none">no finite values</p>'
    left, right = min(steps), max(steps)
    low, high = _range(values, log)

    def place(x: float, y: float) -> str:
        value = (math.log10(y) if y > 0 else low) if log else y
        across = _LEFT + (x - left) / ((right - left) or 1) * (_WIDTH - _LEFT - _RIGHT)
        down = _TOP + (high - value) / ((high - low) or 1) * (_HEIGHT - _TOP - _BOTTOM)
        return f"{across:.1f},{down:.1f}"

    about = escape(f"{' and '.join(name for name, *_ in lines)} by step")
    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{about}">']
    for share in (0.0, 0.5, 1.0):
        value = low + share * (high - low)
        height = _TOP + (1 - share) * (_HEIGHT - _TOP - _BOTTOM)
        label = f"{10**value:.0e}" if log else f"{value:.4g}"
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{height:.1f}" y2="{height:.1f}"/>')
        parts.append(f'<text class="tick" x="{_LEFT - 6}" y="{height + 4:.1f}" text-anchor="end">{label}</text>')
    for end, anchor in ((left, "start"), (right, "end")):
        edge = _LEFT if anchor == "start" else _WIDTH - _RIGHT
        parts.append(f'<text class="tick" x="{edge}" y="{_HEIGHT - 4}" text-anchor="{anchor}">{unit} {end:g}</text>')
    for name, kind, points in kept:
        path = " ".join(place(x, y) for x, y in points)
        parts.append(f'<polyline class="{kind}" points="{path}"><title>{escape(name)}</title></polyline>')
        if len(points) == 1:
            column, row = path.split(",")
            parts.append(f'<circle class="{kind}" cx="{column}" cy="{row}" r="2.5"/>')
    return "".join([*parts, "</svg>"])


def _range(values: Sequence[float], log: bool) -> tuple[float, float]:
    """Return the lower and upper end of the vertical axis; decades when it is logarithmic."""
    if not values:
        return (-8.0, 0.0) if log else (0.0, 1.0)
    if log:
        foot, top = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
        return float(foot), float(max(top, foot + 1))
    low, high = min(values), max(values)
    margin = 0.05 * (high - low) or 0.05 * abs(high) or 0.5
    return (0.0 if 0 <= low < margin else low - margin), high + margin
