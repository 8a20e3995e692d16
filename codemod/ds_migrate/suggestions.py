"""What a mistyped word was meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def closest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that ``word`` is most like, whatever its case; None when nothing is close."""
    by_folded = {option.casefold(): option for option in known}
    close = difflib.get_close_matches(word.casefold(), list(by_folded), 1)
    return by_folded[close[0]] if close else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `` (did you mean ...?)``, or nothing when nothing is close."""
    meant = closest(word, known)
    return f" (did you mean {meant}?)" if meant is not None else ""
