"""Pair the old and new lines of a change, and find the words that differ."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

Span = tuple[int, int]

_WORD = re.compile(r"\w+|\s+|.")
_ALIKE = 0.5  # of the words; lines less alike are better read whole
_MANY = 40  # lines; a block longer than this is a rewrite, and pairing its lines would take long


@dataclass(frozen=True)
class Pair:
    """Two versions of one line: their indices, and the spans of characters that differ in each, white space aside."""

    old: int
    new: int
    old_spans: tuple[Span, ...] = ()
    new_spans: tuple[Span, ...] = ()
    equal: bool = False


def paired_lines(old: Sequence[str], new: Sequence[str]) -> list[Pair]:
    """Return the pairs, in order, that have the most words in common; lines that are unlike all others are in none."""
    if not (old and new) or max(len(old), len(new)) > _MANY:
        return []
    old_words, new_words = ([_WORD.findall(line) for line in lines] for lines in (old, new))
    return [_pair(i, j, old_words[i], new_words[j]) for i, j in _aligned(_likeness(old_words, new_words))]


def _likeness(old: Sequence[Sequence[str]], new: Sequence[Sequence[str]]) -> list[list[float]]:
    """Return how much each pair of lines has in common, in words; 0 if they are unlike. Brackets and operators do not
    count: they are alike everywhere."""
    old_names, new_names = (
        [[word for word in line if word.isidentifier() or word.isalnum()] for line in lines] for lines in (old, new)
    )
    found = [[0.0] * len(new) for _ in old]
    matcher = SequenceMatcher[str](None, autojunk=False)
    for j, words in enumerate(new_names):
        matcher.set_seq2(words)
        for i, others in enumerate(old_names):
            matcher.set_seq1(others)
            if words and others and matcher.real_quick_ratio() >= _ALIKE and matcher.quick_ratio() >= _ALIKE:
                ratio = matcher.ratio()
                found[i][j] = ratio * (len(words) + len(others)) if ratio >= _ALIKE else 0.0
    return found


def _aligned(likeness: Sequence[Sequence[float]]) -> list[tuple[int, int]]:
    """Return the pairs, in order on both sides, whose likeness adds up to the most."""
    rows, columns = len(likeness), len(likeness[0])
    best = [[0.0] * (columns + 1) for _ in range(rows + 1)]
    for i in reversed(range(rows)):
        for j in reversed(range(columns)):
            taken = likeness[i][j] + best[i + 1][j + 1] if likeness[i][j] else 0.0
            best[i][j] = max(best[i + 1][j], best[i][j + 1], taken)
    pairs = []
    i = j = 0
    while i < rows and j < columns:
        if likeness[i][j] and best[i][j] == likeness[i][j] + best[i + 1][j + 1]:
            pairs.append((i, j))
            i, j = i + 1, j + 1
        elif best[i][j] == best[i + 1][j]:
            i += 1
        else:
            j += 1
    return pairs


def _pair(i: int, j: int, old: Sequence[str], new: Sequence[str]) -> Pair:
    changes = [code for code in SequenceMatcher(None, old, new, autojunk=False).get_opcodes() if code[0] != "equal"]
    old_spans = _spans(old, [(first, last) for _, first, last, _, _ in changes])
    new_spans = _spans(new, [(first, last) for _, _, _, first, last in changes])
    return Pair(i, j, tuple(old_spans), tuple(new_spans), equal=not changes)


def _spans(words: Sequence[str], ranges: Sequence[Span]) -> Iterator[Span]:
    """Yield ranges of words as spans of characters, without white space at their ends, but for empty ones."""
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
