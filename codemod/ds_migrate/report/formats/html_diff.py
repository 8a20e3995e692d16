"""The changes of one file as a table of an HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby, pairwise

from ds_migrate.findings import FileResult, Finding
from ds_migrate.report.escaping import visible
from ds_migrate.report.formats.html_rules import code_link
from ds_migrate.report.highlighting import TAB, SourceText, token_class
from ds_migrate.report.hunks import Block, laid_out, side_by_side
from ds_migrate.report.word_diff import Pair, Span, paired_lines


def diff(file: FileResult) -> Iterator[str]:
    """Yield the changes of a file as a table: versions side by side, one below the other where there is no room."""
    before, after = SourceText(file, file.before or b""), SourceText(file, file.after or b"")
    columns = "<col class=n><col><col class=n><col>" if before.lines else "<col class=n><col>"
    yield f"<table class=diff><colgroup>{columns}</colgroup>"
    for blocks in laid_out(file, before.lines, after.lines):
        if blocks[0].change.old > 0:
            scope = escape(before.scope(blocks[0].change.old))
            yield f"<tr class=gap><td></td><td colspan=3>&#8943; {scope}</td></tr>"
        for block in blocks:
            yield from map(_note, block.notes)
            yield from _rows(block, before, after)
    yield "</table>"


def _note(note: Finding) -> str:
    why = f"{code_link(note.code)} {escape(visible(note.message))}"
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
        kind = " class=same" if same and before.lines else ""
        yield f"<tr{kind}>{left if before.lines else ''}{right}</tr>"


def _side(source: SourceText, index: int | None, kind: str, spans: Sequence[Span]) -> str:
    if index is None:
        return "<td class='n none'></td><td class=none></td>"
    mark = f" {kind}" if kind else ""
    text = source.text(index).expandtabs(TAB)
    indent = len(text) - len(text.lstrip())
    line = _line(source, index, spans)
    return f"<td class='n{mark}'>{index + 1}</td><td class='c{mark}' style='--indent:{indent}ch'>{line}</td>"


def _line(source: SourceText, index: int, spans: Sequence[Span]) -> str:
    """Return a line with its tokens coloured and its changed words marked."""
    edges = sorted({edge for span in spans for edge in span})
    shown: list[str] = []
    at = 0
    for kind, group in groupby(source.tokens(index), lambda token: token[0]):
        value = "".join(part for _, part in group)
        end = at + len(value)
        name = token_class(kind)
        cuts = [at, *(edge for edge in edges if at < edge < end), end]
        for first, last in pairwise(cuts):
            text = escape(_visible_code(value[first - at : last - at]))
            # An arrow or a minus is no place to break a line at.
            names = f"{name} u".strip() if "-" in text and " " not in text else name
            text = f"<span class='{names}'>{text}</span>" if names else text
            shown.append(f"<mark>{text}</mark>" if any(a <= first and last <= b for a, b in spans) else text)
        at = end
    ending = "" if source.lines[index].endswith(b"\n") else "<span class=eof> no newline at end of file</span>"
    return "".join(shown) + ending


def _visible_code(text: str) -> str:
    return "\t".join(map(visible, text.split("\t")))
