"""One file's changes on a terminal, unified or side by side, each with the rule behind it and its reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from ds_migrate.findings import Finding, Severity
from ds_migrate.report.escaping import visible
from ds_migrate.report.highlighting import Palette, SourceText, fold
from ds_migrate.report.hunks import Block, side_by_side
from ds_migrate.report.word_diff import Pair, paired_lines

SPLIT_FROM = 160  # columns: two sides of lines that are mostly shorter than 80
_REVIEW = ("▲", "yellow")
_CONVERTED = ("│", "bright_black")


def wants_split(view: str, width: int) -> bool:
    """Return whether versions are shown side by side; ``view`` is auto, unified or split."""
    return view == "split" or (view == "auto" and width >= SPLIT_FROM)


class DiffView:
    """Rows of ``width`` cells at most. ``before`` and ``after`` are the two versions of the file."""

    def __init__(self, before: SourceText, after: SourceText, palette: Palette, width: int, split: bool) -> None:
        self._before = before
        self._after = after
        self._palette = palette
        self._width = width
        self._digits = len(str(max(len(before.lines), len(after.lines))))
        # A new file has one side only.
        self._split = split and bool(before.lines)
        self._side = (width - 1) // 2

    def rows(self, laid: Sequence[Sequence[Block]]) -> Iterator[Text]:
        for blocks in laid:
            first = blocks[0].change
            if first.old > 0:
                yield from self._gap(first.old)
            for block in blocks:
                for note in block.notes:
                    yield from self._note(note)
                yield from self._sides(block) if self._split else self._unified(block)

    def _gap(self, line: int) -> Iterator[Text]:
        row = Text(" " * self._margin + "⋯", "bright_black")
        scope = self._before.scope(line)
        if scope:
            row.append(f"  {scope}", "bright_black italic")
        return fold(row, self._width)

    @property
    def _margin(self) -> int:
        """Cells before the sign of a unified row, or of the left side's."""
        return self._digits + 2 if self._split else 2 * self._digits + 3

    def _note(self, note: Finding) -> Iterator[Text]:
        """Yield ``DSM204 reason`` in as many rows as it needs."""
        symbol, style = _REVIEW if note.severity is Severity.REVIEW else _CONVERTED
        lead = Text.assemble(" " * self._margin, (symbol, style), " ", (note.code, "cyan"), " ")
        message = Text(visible(note.message), "italic" if note.severity is Severity.REVIEW else "bright_black italic")
        for position, part in enumerate(wrapped(message, self._width - lead.cell_len)):
            yield Text.assemble(lead if position == 0 else " " * lead.cell_len, part)

    # -- one version below the other ------------------------------------------------------------------------------

    def _unified(self, block: Block) -> Iterator[Text]:
        change = block.change
        if not change.changed:
            for old, new, _ in side_by_side(change, ()):
                assert old is not None
                yield from self._row(" ", self._before.styled(old, self._palette, " "), (old, new), self._width)
            return
        removed = {i: self._before.styled(i, self._palette, "-") for i in range(change.old, change.old_end)}
        added = {i: self._after.styled(i, self._palette, "+") for i in range(change.new, change.new_end)}
        for pair in self._pairs(block):
            self._highlight(removed[change.old + pair.old], added[change.new + pair.new], pair)
        for index, text in removed.items():
            yield from self._row("-", text, (index, None), self._width)
        for index, text in added.items():
            yield from self._row("+", text, (None, index), self._width)

    # -- side by side ---------------------------------------------------------------------------------------------

    def _sides(self, block: Block) -> Iterator[Text]:
        changed = block.change.changed
        for old, new, pair in side_by_side(block.change, self._pairs(block)):
            same = not changed or (pair is not None and pair.equal)
            left = self._before.styled(old, self._palette, " " if same else "-") if old is not None else Text()
            right = self._after.styled(new, self._palette, " " if same else "+") if new is not None else Text()
            if pair is not None and not same:
                self._highlight(left, right, pair)
            sides = (
                list(self._row(sign if index is not None else " ", text, (index,), self._side))
                for sign, text, index in ((" " if same else "-", left, old), (" " if same else "+", right, new))
            )
            left_rows, right_rows = sides
            for at in range(max(len(left_rows), len(right_rows))):
                row = left_rows[at] if at < len(left_rows) else Text(" " * self._side)
                row.append(" " * (self._side - row.cell_len))
                row.append("│", "bright_black")
                yield row.append_text(right_rows[at]) if at < len(right_rows) else row

    # -- rows -----------------------------------------------------------------------------------------------------

    def _pairs(self, block: Block) -> Sequence[Pair]:
        change = block.change
        if not change.changed:
            return ()
        old = [self._before.styled(i, self._palette, "-").plain for i in range(change.old, change.old_end)]
        return paired_lines(
            old, [self._after.styled(i, self._palette, "+").plain for i in range(change.new, change.new_end)]
        )

    def _highlight(self, old: Text, new: Text, pair: Pair) -> None:
        for text, spans, sign in ((old, pair.old_spans, "-"), (new, pair.new_spans, "+")):
            for span in spans:
                text.stylize(self._palette.line(sign).word, *span)

    def _row(self, sign: str, text: Text, indices: Sequence[int | None], width: int) -> Iterator[Text]:
        """Yield one line of source in as many rows as it needs; numbers count from 1."""
        numbers = " ".join(f"{'' if n is None else n + 1:>{self._digits}}" for n in indices)
        look = self._palette.line(sign)
        for position, part in enumerate(fold(text, width - len(numbers) - 4)):
            line = Text()
            line.append(f" {' ' * len(numbers) if position else numbers} ", look.gutter)
            line.append(f"{' ' if position else sign} ", look.sign)
            line.append_text(part)
            if look.fills:
                line.append(" " * (width - line.cell_len), look.code)
            yield line


def wrapped(text: Text, width: int, hang: int = 0) -> Iterator[Text]:
    """Yield rows of at most ``width`` cells, cut at spaces; rows after the first are ``hang`` cells shorter."""
    rest = text
    room = max(width, 8)
    while rest.cell_len > room:
        cut = rest.plain.rfind(" ", 0, room + 1)
        if cut <= 0:
            pieces = list(fold(rest, room))
            yield pieces[0]
            rest = rest[len(pieces[0]) :]
        else:
            yield rest[:cut]
            rest = rest[cut + 1 :]
        room = max(width - hang, 8)
    yield rest
