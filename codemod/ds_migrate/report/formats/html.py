"""The report as one HTML page that needs nothing else: what was found, then each file's versions side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from importlib import resources
from itertools import pairwise

from ds_migrate import __version__
from ds_migrate.findings import FileResult, Finding, Report, Severity, TrialStatus
from ds_migrate.report.escaping import place, visible
from ds_migrate.report.highlighting import SourceText, token_class
from ds_migrate.report.html_parts import code, document
from ds_migrate.report.hunks import Block, laid_out, side_by_side
from ds_migrate.report.plain import ORDER, sorted_findings
from ds_migrate.report.summary import Command, Mode, memory_lines, next_steps, sentences
from ds_migrate.report.word_diff import Pair, Span, paired_lines

_NAMES = {
    Severity.ERROR: "Errors",
    Severity.BLOCKED: "Blocked",
    Severity.REVIEW: "To review",
    Severity.CONVERTED: "Converted",
}
_TRIALS = {
    TrialStatus.CONVERTED: "becomes a DeepSpeedTrial",
    TrialStatus.ALREADY_DEEPSPEED: "is a DeepSpeedTrial already",
    TrialStatus.DECLINED: "is left as it is",
    TrialStatus.SKIPPED: "is skipped by a comment",
    TrialStatus.BLOCKED: "is blocked",
    TrialStatus.UNSUPPORTED_API: "is of an API that cannot be converted",
}


def to_html(report: Report, mode: Mode, command: Command) -> str:
    """Return the page."""
    style = resources.files(__package__).joinpath("page.css").read_text(encoding="utf-8")
    header = f"<header><h1>ds-migrate</h1><span class=version>{__version__}</span></header>"
    parts = [*_summary(report, mode, command), *_findings(report), *_files(report)]
    return document("ds-migrate report", style, [header, "<main>", *parts, "</main>"])


def _summary(report: Report, mode: Mode, command: Command) -> Iterator[str]:
    for position, sentence in enumerate(sentences(report, mode)):
        yield f"<p{'' if position else ' class=lead'}>{escape(sentence)}</p>"
    memory = list(memory_lines(report))
    if memory:
        yield f"<details><summary>Memory</summary><pre>{escape(chr(10).join(memory))}</pre></details>"
    steps = list(next_steps(report, mode, command))
    if steps:
        yield "<dl class=steps>"
        yield from (f"<dt>{escape(why)}</dt><dd>{code(line)}</dd>" for why, line in steps)
        yield "</dl>"


def _findings(report: Report) -> Iterator[str]:
    for severity in ORDER[:-1]:
        found = [(file, finding) for file in report.files for finding in sorted_findings(file, [severity])]
        if not found:
            continue
        yield f"<section class={severity.value}><h2>{_NAMES[severity]} <span class=count>{len(found)}</span></h2><ul>"
        for file, finding in found:
            help_text = f"<p class=help>{escape(visible(finding.help))}</p>" if finding.help else ""
            link = f'<a href="#{_anchor(report, file)}">{escape(place(file, finding))}</a>'
            message = escape(visible(finding.message))
            yield f"<li><code class=code>{finding.code}</code> {message} <span class=at>{link}</span>{help_text}</li>"
        yield "</ul></section>"


def _anchor(report: Report, file: FileResult) -> str:
    return f"file-{next(index for index, other in enumerate(report.files) if other is file)}"


def _files(report: Report) -> Iterator[str]:
    for file in report.files:
        state = "" if file.to_write else " <span class=state>left as it is</span>"
        if file.to_write and file.before is None:
            state = " <span class=state>new file</span>"
        yield f'<details class=file open id="{_anchor(report, file)}">'
        yield f"<summary>{code(visible(str(file.path)))}{state}</summary>"
        for trial in file.trials:
            name, state = escape(visible(trial.name)), _TRIALS[trial.status]
            yield f"<p class='trial {trial.status.value}'><b>{name}</b> {state}</p>"
        if file.to_write:
            yield from _diff(file)
        yield "</details>"


# -- one file ---------------------------------------------------------------------------------------------------------


def _diff(file: FileResult) -> Iterator[str]:
    before, after = SourceText(file, file.before or b""), SourceText(file, file.after or b"")
    columns = "<col class=n><col><col class=n><col>" if before.lines else "<col class=n><col>"
    yield f"<div class=scroll><table class=diff><colgroup>{columns}</colgroup>"
    for blocks in laid_out(file, before.lines, after.lines):
        if blocks[0].change.old > 0:
            scope = escape(before.scope(blocks[0].change.old))
            yield f"<tr class=gap><td></td><td colspan=3>&#8943; {scope}</td></tr>"
        for block in blocks:
            yield from map(_note, block.notes)
            yield from _rows(block, before, after)
    yield "</table></div>"


def _note(note: Finding) -> str:
    why = f"<code class=code>{note.code}</code> {escape(visible(note.message))}"
    return f"<tr class='note {note.severity.value}'><td></td><td colspan=3>{why}</td></tr>"


def _rows(block: Block, before: SourceText, after: SourceText) -> Iterator[str]:
    change = block.change
    pairs: Sequence[Pair] = ()
    if change.changed:
        pairs = paired_lines(
            [before.text(i) for i in range(change.old, change.old_end)],
            [after.text(i) for i in range(change.new, change.new_end)],
        )
    for old, new, pair in side_by_side(change, pairs):
        same = not change.changed or (pair is not None and pair.equal)
        left = _side(before, old, "" if same else "del", pair.old_spans if pair else ())
        right = _side(after, new, "" if same else "add", pair.new_spans if pair else ())
        yield f"<tr>{left if before.lines else ''}{right}</tr>"


def _side(source: SourceText, index: int | None, kind: str, spans: Sequence[Span]) -> str:
    if index is None:
        return "<td class=n></td><td class=none></td>"
    mark = f" {kind}" if kind else ""
    return f"<td class='n{mark}'>{index + 1}</td><td class='c{mark}'>{_line(source, index, spans)}</td>"


def _line(source: SourceText, index: int, spans: Sequence[Span]) -> str:
    """Return a line with its tokens coloured and its changed words marked."""
    edges = sorted({edge for span in spans for edge in span})
    shown: list[str] = []
    at = 0
    for kind, value in source.tokens(index):
        end = at + len(value)
        name = token_class(kind)
        cuts = [at, *(edge for edge in edges if at < edge < end), end]
        for first, last in pairwise(cuts):
            text = escape(_visible_code(value[first - at : last - at]))
            text = f"<span class={name}>{text}</span>" if name else text
            shown.append(f"<mark>{text}</mark>" if any(a <= first and last <= b for a, b in spans) else text)
        at = end
    ending = "" if source.lines[index].endswith(b"\n") else "<span class=eof> no newline at end of file</span>"
    return "".join(shown) + ending


def _visible_code(text: str) -> str:
    return "\t".join(map(visible, text.split("\t")))
