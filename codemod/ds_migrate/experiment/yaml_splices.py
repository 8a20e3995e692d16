"""Text edits in a YAML text: insert pairs, remove pairs or items, replace scalars. Every other character stays.

The functions only describe what to change; whoever uses them parses the result again and compares its meaning with the
one intended, so a layout that no rule here foresaw is found out instead of damaged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ds_migrate.experiment.yaml_nodes import Node, is_string

Value = str | int | Mapping[str, "Value"]

_PLAIN = re.compile(r"(?:--?(?=[A-Za-z]))?[\w./][\w./+@%:-]*(?: [\w./+@%-][\w./+@%:-]*)*")
_BREAK = re.compile(r"\r\n|\r|\n")


@dataclass(frozen=True)
class Splice:
    """``text[start:end]`` becomes ``new``."""

    start: int
    end: int
    new: str


def apply(text: str, splices: Iterable[Splice], *, final_break: bool = False) -> str:
    """The text after all splices, which must not overlap; insertions at one offset keep their order.

    A text without final newline gets none by having its last lines removed, unless ``final_break``.
    """
    parts: list[str] = []
    done = 0
    for splice in sorted(splices, key=lambda s: (s.start, s.end)):
        if splice.start < done:
            raise ValueError(f"edits overlap at offset {splice.start}")
        parts += [text[done : splice.start], splice.new]
        done = splice.end
    result = "".join([*parts, text[done:]])
    if text and not final_break and not _BREAK.fullmatch(text[-1:]):
        result = re.sub(r"(?:\r\n|\r|\n)\Z", "", result)
    return result


def newline(text: str) -> str:
    """Return the line ending of the text's first line."""
    match = _BREAK.search(text)
    return "\n" if match is None else match.group()


def line_start(text: str, offset: int) -> int:
    return max(text.rfind("\n", 0, offset), text.rfind("\r", 0, offset)) + 1


def line_end(text: str, offset: int) -> int:
    """Return where the line of ``offset`` ends, its line break not included."""
    match = _BREAK.search(text, offset)
    return len(text) if match is None else match.start()


def next_line(text: str, offset: int) -> int:
    match = _BREAK.search(text, offset)
    return len(text) if match is None else match.end()


def render(value: Value, quoted: bool = False) -> str:
    """A value in flow style; strings plain where every reader takes them for strings."""
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        plain = not quoted and _PLAIN.fullmatch(value) is not None and is_string(value) and not value.endswith(":")
        return value if plain else json.dumps(value, ensure_ascii=False)
    return "{" + ", ".join(f"{render(key, quoted)}: {render(item, quoted)}" for key, item in value.items()) + "}"


def block_lines(key: str, value: Value, indent: str, step: str, comments: Mapping[str, str]) -> list[str]:
    """Return the lines of one pair in block style. ``comments``: what follows the line of a key."""
    if isinstance(value, Mapping):
        lines = [f"{indent}{render(key)}:"]
        for name, item in value.items():
            lines += block_lines(name, item, indent + step, step, comments)
        return lines
    return [f"{indent}{render(key)}: {render(value)}{comments.get(key, '')}"]


def end_of_pair(text: str, key: Node, value: Node) -> int:
    """Return where the last character of a pair stands (exclusive), comments and trailing blank lines left out."""
    if value.kind == "scalar" and value.start == value.end:
        colon = text.find(":", key.end)
        return max(key.end, colon + 1)
    return end_of(text, value)


def end_of(text: str, node: Node) -> int:
    if node.kind == "scalar" and node.style in ("|", ">"):
        return node.start + len(text[node.start : node.end].rstrip())
    if node.flow or node.kind in ("scalar", "alias"):
        return node.end
    if node.kind == "mapping":
        return end_of_pair(text, *node.pairs[-1])
    last = node.items[-1]
    return last.start if last.start == last.end else end_of(text, last)


def trailing_comment(text: str, offset: int) -> str:
    """The comment that follows ``offset`` on its line, with the blanks before it, or nothing."""
    rest = text[offset : line_end(text, offset)].rstrip()
    return rest if re.match(r"[ \t]+#", rest) else ""


def indent_of(text: str, mapping: Node) -> str:
    """Return what stands before the keys of a block mapping."""
    first = mapping.pairs[0][0].start
    before = text[line_start(text, first) : first]
    return before if not before.strip() else " " * len(before.rstrip(" \t").rstrip("?-"))


def insert(
    text: str,
    mapping: Node,
    pairs: Mapping[str, Value],
    *,
    after: int | None,
    step: str = "  ",
    comments: Mapping[str, str] | None = None,
) -> list[Splice]:
    """Add pairs to a mapping, behind its pair number ``after`` (None: before the first; only block mappings)."""
    if mapping.flow:
        return _insert_flow(text, mapping, pairs)
    end_line = newline(text)
    indent = indent_of(text, mapping)
    lines = [line for key, value in pairs.items() for line in block_lines(key, value, indent, step, comments or {})]
    if after is None:
        return [_insert_lines(text, line_start(text, mapping.pairs[0][0].start), lines, end_line)]
    return [_insert_lines(text, next_line(text, end_of_pair(text, *mapping.pairs[after])), lines, end_line)]


def insert_under(
    text: str, key: Node, pairs: Mapping[str, Value], indent: str, step: str, comments: Mapping[str, str]
) -> list[Splice]:
    """Give a key of a block mapping that has no value (``key:``) a block of pairs."""
    lines = [line for name, value in pairs.items() for line in block_lines(name, value, indent + step, step, comments)]
    colon = text.find(":", key.end) + 1
    return [_insert_lines(text, next_line(text, colon), lines, newline(text))]


def _insert_lines(text: str, offset: int, lines: Sequence[str], end_line: str) -> Splice:
    block = end_line.join(lines)
    if offset == len(text) and text and text[-1] not in "\r\n":
        return Splice(offset, offset, end_line + block)
    return Splice(offset, offset, block + end_line)


def _insert_flow(text: str, mapping: Node, pairs: Mapping[str, Value]) -> list[Splice]:
    quoted = bool(mapping.pairs) and all(key.style == '"' for key, _ in mapping.pairs)
    new = [f"{render(key, quoted)}: {render(value, quoted)}" for key, value in pairs.items()]
    if not mapping.pairs:
        brace = text.rfind("{", mapping.start, mapping.end) + 1
        return [Splice(brace, brace, ", ".join(new))]
    key, value = mapping.pairs[-1]
    end = end_of_pair(text, key, value)
    before = text[line_start(text, key.start) : key.start]
    if before.strip() or line_start(text, key.start) <= mapping.start or line_end(text, end) > mapping.end:
        return [Splice(end, end, ", " + ", ".join(new))]
    # One pair a line, as JSON is mostly printed: each new pair gets a separate line.
    comma = _comma(text, end, mapping.end)
    end_line = newline(text)
    lines = ("," + end_line).join(before + pair for pair in new) + ("" if comma is None else ",")
    at_break = line_end(text, end if comma is None else comma)
    added = Splice(at_break, at_break, end_line + lines)
    return [added] if comma is not None else [Splice(end, end, ","), added]


def _comma(text: str, offset: int, stop: int) -> int | None:
    """The comma between ``offset`` and the next entry, comments passed over."""
    while offset < stop:
        if text[offset] == ",":
            return offset
        if text[offset] == "#":
            offset = line_end(text, offset)
        elif not text[offset].isspace():
            return None
        offset += 1
    return None


def remove(text: str, parent: Node, indices: Iterable[int]) -> list[Splice]:
    """Take some, not all, pairs of a mapping or items of a sequence away."""
    gone = sorted(indices)
    spans = [(k.start, end_of_pair(text, k, v)) for k, v in parent.pairs] or [
        (i.start, end_of(text, i)) for i in parent.items
    ]
    if not parent.flow:
        nodes = [value for _, value in parent.pairs] or parent.items
        return [s for i in gone for s in _remove_lines(text, *spans[i], keep_comments=not _holds_text(text, nodes[i]))]
    cuts: list[tuple[int, int]] = []
    for i in gone:
        start, end = spans[i]
        comma = _comma(text, end, parent.end)
        if comma is not None and not text[end:comma].strip():
            end = comma + 1
        elif comma is not None:
            cuts.append((comma, comma + 1))
        elif i == len(spans) - 1:
            last_kept = max(set(range(len(spans))) - set(gone))
            before = _comma(text, spans[last_kept][1], parent.end)
            if before is not None:
                cuts.append((before, before + 1))
        cuts.append((start, end))
    return [_widen(text, start, end) for start, end in _joined(text, cuts)]


def _joined(text: str, cuts: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Cuts with nothing but blanks between them as one."""
    result: list[tuple[int, int]] = []
    for start, end in sorted(cuts):
        if result and not text[result[-1][1] : start].strip():
            result[-1] = result[-1][0], end
        else:
            result.append((start, end))
    return result


def _widen(text: str, start: int, end: int) -> Splice:
    """Return a cut with the blanks that would be left over; the whole line when nothing else is on it."""
    first, last = line_start(text, start), line_end(text, end)
    blank_before, blank_after = not text[first:start].strip(), not text[end:last].strip()
    if blank_before and blank_after and first > 0:
        return Splice(first, next_line(text, end), "")
    if blank_after or text[end : end + 1] in ("}", "]"):
        start -= len(text[:start]) - len(text[:start].rstrip(" \t"))
    else:
        rest = text[end:last].lstrip(" \t")
        if blank_before or not rest.startswith("#"):  # behind something, a comment needs the blank before it
            end = last - len(rest)
    return Splice(start, end, "")


def _holds_text(text: str, node: Node) -> bool:
    """Return whether a line that starts with ``#`` inside the node may be text instead of a comment."""
    if node.kind == "scalar":
        return node.style in ("|", ">") or bool(_BREAK.search(text[node.start : node.end]))
    return any(_holds_text(text, child) for child in [*node.items, *(value for _, value in node.pairs)])


def _remove_lines(text: str, start: int, end: int, keep_comments: bool) -> list[Splice]:
    splices: list[Splice] = []
    offset = line_start(text, start)
    while True:
        following = next_line(text, offset)
        if not (keep_comments and text[offset:following].lstrip().startswith("#")):
            splices.append(Splice(offset, following, ""))
        if following >= end:
            return splices
        offset = following
