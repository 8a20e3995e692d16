"""Suggestions for mistyped words, for the codemod and the runtime."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def closest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known word that ``word`` is most like, whatever its case; None when nothing is close.

    ``cutoff``: the least similarity, from 0 to 1, as ``difflib`` measures it.
    """
    by_folded = {option.casefold(): option for option in known}
    close = difflib.get_close_matches(word.casefold(), list(by_folded), 1, cutoff)
    return by_folded[close[0]] if close else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `` (did you mean ...?)``, or nothing when nothing is close."""
    meant = closest(word, known)
    return f" (did you mean {meant}?)" if meant is not None else ""
