"""Which YAML files are worth a parse, decided on bytes: most files of a tree never get further."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ds_migrate.experiment.model import ScriptRun, TrialFacts

_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def may_name(data: bytes, names: Iterable[str]) -> bool:
    """Whether a YAML file may be the experiment config of one of ``names`` (what :func:`needles` gives).

    A search on bytes; True may be wrong, False never is (save for exotic spellings such as an escaped ``entrypoint``).
    """
    if data.startswith(_UTF16):
        text = _text(data)
        return "entrypoint" in text and any(name in text for name in names)
    return b"entrypoint" in data and any(name.encode("utf-8", "surrogateescape") in data for name in names)


def needles(trials: Sequence[TrialFacts], scripts: Mapping[Path, Sequence[ScriptRun]]) -> frozenset[str]:
    """What a config that concerns one of ``trials`` or ``scripts`` must contain: a class, module or script name."""
    followed = [trial for trial in trials if trial.configs_follow]
    found = {trial.name for trial in followed}
    found |= {trial.path.parent.name if trial.path.name == "__init__.py" else trial.path.stem for trial in followed}
    names = {trial.name for trial in followed}
    found |= {
        script.stem
        for script, runs in scripts.items()
        if any((run if isinstance(run, str) else run[1]) in names for run in runs)
    }
    return frozenset(map(_longest_word, found))


def words_of(configs: Iterable[bytes]) -> frozenset[str]:
    """Every word of the YAML files."""
    return frozenset(word for data in configs for word in re.findall(r"\w+", _text(data)))


def may_be_started(script: str, words: frozenset[str]) -> bool:
    """Whether YAML files with these words may name the script (``__main__`` goes by the name of its package)."""
    stem = script.rpartition("/")[2].rpartition(".")[0]
    return bool(words) and (stem.startswith("__") or _longest_word(stem) in words)


def _longest_word(name: str) -> str:
    """Of "run it" only "run": a blank in a file name may be written in several ways."""
    words: list[str] = re.findall(r"\w+", name)
    return max(words, key=len, default=name)


def _text(data: bytes) -> str:
    return data.decode("utf-16" if data.startswith(_UTF16) else "utf-8", errors="replace")


def textually_names(text: str, names: Iterable[str]) -> int | None:
    """The line (from 1) on which a text that cannot be parsed seems to give one of ``names`` as its entrypoint."""
    wanted = "|".join(sorted(map(re.escape, names)))
    if not wanted:
        return None
    match = re.search(
        rf"^[ \t'\"]*entrypoint[^\n]*(?:\n[ \t]+[^\n]*|\n-[^\n]*)*?(?<!\w)(?:{wanted})(?!\w)", text, re.MULTILINE
    )
    return None if match is None else text.count("\n", 0, match.start()) + 1
