"""Which words of a changed line changed: lines that became each other are paired, and compared word by word."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

Span = tuple[int, int]

_WORD = re.compile(r"\w+|\s+|.")
_ALIKE = 0.6  # of the words; lines less alike are better read whole
_MANY = 40  # lines; a block longer than this is a rewrite, and pairing its lines would take long


def changed_words(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[int, int, list[Span], list[Span]]]:
    """Pairs of lines that are versions of one another: their indices, and the character spans that differ in each."""
    if max(len(old), len(new)) > _MANY:
        return
    start = 0
    for index, line in enumerate(old):
        words = _WORD.findall(line)
        best, best_ratio, changes = -1, _ALIKE, list[tuple[str, int, int, int, int]]()
        for candidate in range(start, len(new)):
            matcher = SequenceMatcher(None, words, _WORD.findall(new[candidate]), autojunk=False)
            if matcher.real_quick_ratio() > best_ratio and matcher.ratio() > best_ratio:
                best, best_ratio = candidate, matcher.ratio()
                changes = [opcode for opcode in matcher.get_opcodes() if opcode[0] != "equal"]
        if not changes:
            continue
        start = best + 1
        old_spans = _spans(words, [(first, last) for _, first, last, _, _ in changes])
        new_spans = _spans(_WORD.findall(new[best]), [(first, last) for _, _, _, first, last in changes])
        yield index, best, list(old_spans), list(new_spans)


def _spans(words: Sequence[str], ranges: Sequence[Span]) -> Iterator[Span]:
    """Ranges of words as spans of characters, without white space at their ends; empty ones are left out."""
    offsets = [0]
    for word in words:
        offsets.append(offsets[-1] + len(word))
    for first, last in ranges:
        while first < last and words[first].isspace():
            first += 1
        while first < last and words[last - 1].isspace():
            last -= 1
        if first < last:
            yield offsets[first], offsets[last]
