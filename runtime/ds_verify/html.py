"""The verification as one HTML file that needs nothing else: verdict, tables, curves, findings, diff, versions."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape

from ds_migrate.findings import Finding
from ds_migrate.report.counts import count
from ds_migrate.report.formats.html_rules import code_link, rule_sections
from ds_migrate.report.html_parts import code, contents, document, table
from trial_runtime._redaction import masked_file
from trial_runtime._svg_curves import Points, curves

from ds_verify.compare import gap_between
from ds_verify.record import Kind, Record
from ds_verify.report import Verification, memory, speed
from ds_verify.runs import Round
from ds_verify.working_copies import FileChange

_CHARTS = 24
_CURVES: tuple[Kind, ...] = ("training", "gradient", "validation", "lr", "norm")
_FIRST = 8
_ROWS = 300
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")

_STYLE = """
:root { --one: #3b6fd4; --two: #e08a00; }
@media (prefers-color-scheme: dark) { :root { --one: #7aa5ff; --two: #ffb84d; } }
body { max-width: 1120px; }
h1 { font-size: 22px; margin: 0 0 4px; } h2 { font-size: 17px; margin: 36px 0 10px; }
h3 { font-size: 14px; font-weight: 600; margin: 0 0 6px; overflow-wrap: anywhere; }
.soft, .none { color: var(--quiet); }
.verdict { margin: 18px 0; padding: 14px 18px; border-left: 5px solid; background: var(--box); font-weight: 600;
  overflow-wrap: anywhere; }
.verdict.same { border-color: var(--done); } .verdict.partial { border-color: var(--review); }
.verdict.different { border-color: var(--error); }
.same-text { color: var(--done); } .different-text { color: var(--error); }
.wide { overflow-x: auto; } table { border-collapse: collapse; min-width: 60%; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 500; color: var(--quiet); } th, td { padding: 4px 16px 4px 0;
  border-bottom: 1px solid var(--line); vertical-align: top; } td.n, th.n { text-align: right; }
td code, td.n, td:first-child { white-space: nowrap; }
@media (max-width: 700px) {
  th, td { padding-right: 10px; } td code { white-space: normal; overflow-wrap: anywhere; }
  .wide:has(th:nth-child(6)) table { min-width: 42rem; }
}
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(440px, 1fr)); gap: 20px; }
@media (max-width: 560px) { .charts { grid-template-columns: 1fr; } }
.chart { background: var(--box); padding: 12px; } svg { width: 100%; height: auto; display: block; }
.grid { stroke: var(--line); } .tick { fill: var(--quiet); font-size: 11px; }
polyline { fill: none; stroke-width: 1.6; } .one { stroke: var(--one); stroke-width: 4; }
.two { stroke: var(--two); stroke-width: 2; stroke-dasharray: 7 5; }
.gap { stroke: var(--error); } .control { stroke: var(--quiet); stroke-dasharray: 4 3; }
.limit { stroke: var(--quiet); } circle { fill: currentColor; }
.key { display: inline-block; width: 18px; height: 4px; margin: 0 6px 3px 14px; } .key.k1 { background: var(--one); }
.key.k2 { background: var(--two); } .key.kg { background: var(--error); } .key.kc { background: var(--quiet); }
nav ul { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: 2px 18px; }
details { margin: 8px 0; } summary { cursor: pointer; }
pre { overflow-x: auto; background: var(--box); padding: 10px; }
.add { background: var(--add); } .del { background: var(--del); } .hunk { color: var(--quiet); }
pre span { display: block; min-height: 1.45em; } pre.log { white-space: pre-wrap; }
"""


def render(found: Verification) -> str:
    """Return the whole page."""
    state = "different" if not found.same else "partial" if found.unseen else "same"
    title = f"ds-verify: {found.selection.trial}"
    body = [
        f"<main><h1>{escape(title)}</h1>",
        f'<p class="soft">{escape(found.sides.how)}'
        + (f"; config {escape(str(found.selection.config))}" if found.selection.config else "")
        + "</p>",
        f'<div class="verdict {state}">{escape(found.headline)}</div>',
        *(f'<p class="soft">{escape(note)}</p>' for note in found.notes),
        *(f'<p>{escape(title)}:</p><pre class="log">{escape(text)}</pre>' for title, text in found.tracebacks),
        *contents(_parts(found)),
        "</main>",
    ]
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", document(title, _STYLE, body))


def _parts(found: Verification) -> Iterator[str]:
    yield from _explanations(found)
    yield from _comparisons(found)
    yield from _differences(found)
    yield from _noise(found)
    yield from _costs(found)
    for trained in found.rounds:
        yield from _charts(trained, found.unit)
    yield from _findings(found)
    yield from _changes(found.sides.changes)
    yield from _versions(found)
    yield from rule_sections(it.code for _, it in [*_shown_findings(found), *found.explanations])


def _explanations(found: Verification) -> Iterator[str]:
    if found.explanations:
        yield "<h2>What may explain it</h2>"
        yield "<p>According to the conversion, these change numbers:</p>"
        yield table(
            ["where", "finding"],
            [
                [f"<code>{escape(name)}:{it.line}</code>", f"{code_link(it.code)} {escape(it.message)}"]
                for name, it in found.explanations
            ],
        )


def _comparisons(found: Verification) -> Iterator[str]:
    if not found.outcomes:
        return
    yield "<h2>Comparison</h2>"
    rows = []
    for outcome in found.outcomes:
        gap, key, limit = outcome.largest or (None, None, None)
        state = "same" if outcome.same else "different"
        rows.append(
            [
                escape(outcome.label),
                f'<span class="{state}-text">{state}</span>',
                f"{outcome.values:,}" if outcome.values else "-",
                "-" if gap is None else "0 (bitwise)" if gap == 0 else f"{gap:.2e}",
                "-" if limit is None else f"{limit:.2e}",
                f"{code(key)}, {outcome.unit}&nbsp;{key.step}" if gap and key is not None else "",
                escape(outcome.first),
            ]
        )
    headings = ["", "verdict", "values", "largest gap", "limit there", "where", "first difference"]
    yield _filled_table(headings, rows, (2, 3, 4))
    settings = found.settings
    rule = (
        f"the tolerance given, {settings.tolerance:g}"
        if settings.tolerance is not None
        else f"{found.rounds[0].limits(found.rounds[0].converted).floor:g} (relative to values above 1) and 10 times "
        "the gap of a control run: the original, with each initial weight changed by one rounding step"
    )
    yield (f'<p class="soft">Compared: {found.compared}. A value differs when its gap exceeds {rule}.</p>')


def _filled_table(headings: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int]) -> str:
    """Return a table without the columns that no row has a value for."""
    kept = [at for at in range(len(headings)) if any(row[at] not in ("", "-") for row in rows)]
    shown = [[row[at] for at in kept] for row in rows]
    return table([headings[at] for at in kept], shown, [kept.index(at) for at in numbers if at in kept])


def _noise(found: Verification) -> Iterator[str]:
    names = {name: spread for outcome in found.outcomes for name, spread in outcome.noise.items()}
    if names:
        rows = [[code(n), f"{s:.1e}"] for n, s in names.items()]
        yield f"<details><summary>{count(len(names), 'parameter')} that rounding alone decides</summary>"
        yield "<p>The control run moves them by more than the floor, so they are compared with its spread.</p>"
        yield table(["parameter", "control's spread"], rows, (1,)) + "</details>"


def _differences(found: Verification) -> Iterator[str]:
    for outcome in found.outcomes:
        if outcome.failure is not None:
            yield f"<h2>The converted {found.subject} failed with {escape(outcome.label)}</h2>"
            yield f'<pre class="log">{escape(outcome.failure.text)}</pre>'
        elif outcome.differences:
            yield f"<h2>First differences with {escape(outcome.label)}</h2>"
            rows = [
                [str(d.key.step), f"{d.gap:.2e}", f"{d.limit:.1e}", code(d.key), escape(d.reason)]
                for d in outcome.differences
            ]
            headings = (outcome.unit, "gap", "limit", "value", "")
            yield table(headings, rows[:_FIRST], (0, 1, 2))
            if rows[_FIRST:]:
                more = table(headings, rows[_FIRST:_ROWS], (0, 1, 2))
                left = "" if len(rows) <= _ROWS else f", of which {_ROWS - _FIRST} are shown"
                yield f"<details><summary>{len(rows) - _FIRST:,} more{left}</summary>{more}</details>"


def _costs(found: Verification) -> Iterator[str]:
    rows = [
        [escape(label), memory(figures), speed(figures), escape(why)]
        for label, figures, why in found.costs()
        if figures or (why and why not in found.headline)
    ]
    if not rows:
        return
    yield f"<h2>Memory{' and speed' if any(row[2] != '-' for row in rows) else ''}</h2>"
    yield _filled_table(["", "peak memory of a rank", "speed", ""], rows, (1, 2))
    if found.settings.device == "cpu":
        yield '<p class="soft">On a CPU: the memory of the whole process, torch included.</p>'


def _charts(trained: Round, unit: str) -> Iterator[str]:
    if trained.original.failure is not None or trained.converted.failure is not None:
        return
    label = "1 rank" if trained.ranks == 1 else f"{trained.ranks} ranks"
    yield f"<h2>Curves with {label}</h2>"
    yield (
        '<p class="soft"><span class="key k1"></span>original<span class="key k2"></span>converted'
        '<span class="key kg"></span>gap<span class="key kc"></span>gap of the control run</p>'
    )
    points = Counter(
        (key.kind, key.name)
        for key, value in trained.original.record.values.items()
        if key.kind in _CURVES and key.rank == 0 and (value.size == 1 or key.kind == "lr")
    )
    least = min(2, max(points.values(), default=1))  # one point is no curve
    shown: list[tuple[Kind, str]] = sorted(
        (series for series, count in points.items() if count >= least),
        key=lambda series: (_CURVES.index(series[0]), series[1]),
    )
    yield '<div class="charts">'
    for kind, name in shown[:_CHARTS]:
        one, two, control = (
            _series(side.record, kind, name) for side in (trained.original, trained.converted, trained.control)
        )
        yield f'<div class="chart"><h3>{escape(kind)}: {escape(name)}</h3>'
        yield curves([("original", "one", one), ("converted", "two", two)], unit=unit)
        gaps = [("control", "control", _gaps(one, control)), ("gap", "gap", _gaps(one, two))]
        yield curves(gaps, log=True, unit=unit)
        yield "</div>"
    yield "</div>"
    if len(shown) > _CHARTS:
        yield f'<p class="soft">and {len(shown) - _CHARTS} more series</p>'


def _series(record: Record, kind: Kind, name: str) -> list[tuple[float, float]]:
    found = [
        (float(key.step), float(value.reshape(-1)[0]))
        for key, value in record.values.items()
        if key.kind == kind and key.name == name and key.rank == 0 and value.size
    ]
    return sorted(found)


def _gaps(one: Points, other: Points) -> list[tuple[float, float]]:
    import numpy as np

    values = dict(other)
    return [(x, gap_between(np.array(y), np.array(values[x]))) for x, y in one if x in values]


def _shown_findings(found: Verification) -> list[tuple[str, Finding]]:
    return [(name, it) for name, it in found.sides.findings if it.severity.value != "converted"]


def _findings(found: Verification) -> Iterator[str]:
    shown = _shown_findings(found)
    if shown:
        yield "<h2>Findings of the conversion</h2>"
        rows = [
            [it.severity.value, f"<code>{escape(name)}:{it.line}</code>", f"{code_link(it.code)} {escape(it.message)}"]
            for name, it in shown
        ]
        yield table(["severity", "where", "finding"], rows)


def _changes(changes: Sequence[FileChange]) -> Iterator[str]:
    if changes:
        yield "<h2>What the conversion changed</h2>"
    for change in changes:
        before, after = (_shown_lines(change.name, part or b"") for part in (change.before, change.after))
        lines = [
            f'<span class="{_line_class(line)}">{escape(line)}</span>'
            for line in difflib.unified_diff(before, after, lineterm="", n=3)
            if not line.startswith(("---", "+++"))
        ]
        yield f"<details open><summary>{code(change.name)}</summary>"
        yield f"<pre>{''.join(lines)}</pre></details>"


def _shown_lines(name: str, content: bytes) -> list[str]:
    """Return a file's lines, without the secrets of an experiment config."""
    shown = content if name.endswith(".py") else masked_file(content)
    return shown.decode(errors="replace").splitlines()


def _line_class(line: str) -> str:
    return {"+": "add", "-": "del", "@": "hunk"}.get(line[:1], "ctx")


def _versions(found: Verification) -> Iterator[str]:
    yield "<h2>Versions</h2>"
    yield table(["", ""], [[escape(name), code(text)] for name, text in found.versions.items()])
    seeds = found.settings.seed if not found.rounds else "as in the config, else " + str(found.settings.seed)
    yield f'<p class="soft">seed {seeds}; deterministic algorithms where torch has them</p>'
