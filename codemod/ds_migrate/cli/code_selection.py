"""Codes as they are typed for ``--select``, ``--ignore`` and ``per-file-ignores``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from ds_migrate.cli.arguments import Arguments
from ds_migrate.cli.settings import SettingsError
from ds_migrate.files.ignored_codes import IgnoredCodes
from ds_migrate.files.patterns import slow_patterns
from ds_migrate.rules.codes import Code, unknown_code
from ds_migrate.rules.outcomes import REVIEWED


def ignored_codes(arguments: Arguments, folder: str, per_file: Mapping[str, Sequence[str]]) -> IgnoredCodes:
    """Return the codes that a run ignores. ``per_file``: codes by pattern, which is relative to ``folder``.

    Raises:
        SettingsError: a code does not exist, has no finding that could be ignored, or a pattern is too slow.
    """
    for pattern in slow_patterns(per_file):
        raise SettingsError(f"per-file-ignores: the pattern {pattern} has too many wildcards")
    return IgnoredCodes(
        frozenset(_ignorable(arguments.ignore or (), "ignore")),
        tuple((folder, pattern, frozenset(_ignorable(codes, "ignore"))) for pattern, codes in per_file.items()),
        None if arguments.select is None else frozenset(_codes(arguments.select, "select")),
    )


def _ignorable(words: Iterable[str], option: str) -> Iterator[Code]:
    for word in words:
        found = list(_codes([word], option))
        reviewed = [code for code in found if code in REVIEWED]
        if found and not reviewed:
            raise SettingsError(
                f"{option} {word}: it has no review finding to ignore; what is converted, blocked or an error cannot "
                "be ignored; to leave a trial as it is, write # ds-migrate: skip on its class"
            )
        yield from reviewed


def _codes(words: Iterable[str], option: str) -> Iterator[Code]:
    """Yield every code that is meant: by itself, by its name, or by its first letters (``DSM4``)."""
    for word in (part.strip() for typed in words for part in typed.split(",")):
        named = [code for code in Code if word.lower() == code.slug]
        found = named or [code for code in Code if len(word) > 2 and code.startswith(word.upper())]
        if not found:
            raise SettingsError(f"{option}: {unknown_code(word)}; --list-rules names them all")
        yield from found
