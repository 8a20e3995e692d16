"""The arguments of ``ds-migrate``, checked, with a suggestion for what was mistyped.

Paths alone, as of a commit hook, need no ``argparse``: it takes as long to import as Python to start.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # typing's own name for it costs 2 ms of every run
if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Iterable, Sequence
    from typing import NoReturn

STDIN = "-"
SHELLS = ("bash", "zsh", "fish")
PRECISIONS = ("fp32", "bf16", "fp16", "autocast")
OFFLOADS = ("none", "optimizer", "parameters")
FORMATS = ("text", "json", "sarif", "github", "html")
_ALONE = {"--check": "check", "--write": "write", "--diff": "diff"}  # understood without argparse, one at most


class Arguments:
    """What a run was asked for; what stands here is what holds without a word of it.

    ``repeated`` are the options that the next command must repeat, ``patterns`` triples (base, include, exclude) of
    what the run is limited to.
    """

    paths: Sequence[str] = ()
    write = interactive = diff = check = undo = list_rules = False
    explain: str | None = None
    completion: str | None = None
    target = "runtime"
    zero: int | None = None
    precision: str | None = None
    offload: str | None = None
    optimizer_in_config: bool | None = None
    include: list[str] | None = None
    exclude: list[str] | None = None
    stdin_filename: str | None = None
    jobs: int | None = None
    format = "text"
    view = "auto"
    color = "auto"
    patterns: Sequence[tuple[str, Sequence[str] | None, Sequence[str] | None]] = ()
    repeated: Sequence[str] = ()


def parse(argv: Sequence[str] | None) -> Arguments:
    """The arguments of a run. Raises SystemExit: 0 after help or version, 2 for wrong usage."""
    words = sys.argv[1:] if argv is None else argv
    arguments = _plain(words) or _checked(words)
    if not (arguments.undo or arguments.list_rules or arguments.explain or arguments.completion):
        arguments = _with_settings(words, arguments)
    return arguments


def _plain(words: Sequence[str]) -> Arguments | None:
    """Arguments that are paths and at most one option without a value; None for any others."""
    paths = [word for word in words if not word.startswith("-")]
    options = [word for word in words if word.startswith("-")]
    if not paths or len(options) > 1 or any(option not in _ALONE for option in options):
        return None
    arguments = Arguments()
    arguments.paths = paths
    for option in options:
        setattr(arguments, _ALONE[option], True)
    return arguments


def _checked(words: Sequence[str]) -> Arguments:
    """Any arguments."""
    from ds_migrate.cli.parser import make_parser

    parser = make_parser()
    arguments = _parsed(parser, words, Arguments())
    asks_for_text = arguments.undo or arguments.list_rules or arguments.explain or arguments.completion
    if not (arguments.paths or asks_for_text):
        parser.error("name at least one PATH, for example: ds-migrate .")
    if arguments.undo and len(arguments.paths) > 1:
        parser.error("--undo takes one PATH at most: the project whose last run is undone")
    if asks_for_text and arguments.format != "text":
        parser.error(f"--format {arguments.format} is for a preview, --check and --write")
    if not asks_for_text:
        _check_stdin(parser, arguments)
    return arguments


def _parsed(parser: ArgumentParser, words: Sequence[str], defaults: Arguments) -> Arguments:
    # Options may stand between paths, except after "--", which only the plain way of parsing understands.
    return (parser.parse_args if "--" in words else parser.parse_intermixed_args)(words, defaults)


def _check_stdin(parser: ArgumentParser, arguments: Arguments) -> None:
    if STDIN in arguments.paths:
        if len(arguments.paths) > 1:
            parser.error("- reads one file from standard input: name nothing beside it")
        for option in ("write", "interactive"):
            if getattr(arguments, option):
                parser.error(f"--{option} has no file to write: - prints what it converts")
    elif arguments.stdin_filename:
        parser.error("--stdin-filename says what - reads: ds-migrate - --stdin-filename FILE < FILE")
    if arguments.interactive and arguments.format != "text":
        parser.error("--interactive asks on the terminal: it has no --format")


def _with_settings(words: Sequence[str], typed: Arguments) -> Arguments:
    """The arguments once more, where ``pyproject.toml`` says what those are that the command line is silent about."""
    from ds_migrate.cli.settings import PATTERNS, SettingsError, settings_for

    try:
        settings = settings_for([typed.stdin_filename or "."] if STDIN in typed.paths else typed.paths)
    except SettingsError as error:
        _refuse(str(error))
    arguments = typed
    patterns = [(os.curdir, typed.include, typed.exclude)]
    if settings is not None:
        from ds_migrate.cli.parser import make_parser

        arguments = Arguments()
        for key, value in settings.values.items():
            if key not in PATTERNS:
                setattr(arguments, key.replace("-", "_"), value)
        arguments = _parsed(make_parser(), words, arguments)
        include, exclude = (settings.values.get(key) if getattr(typed, key) is None else None for key in PATTERNS)
        patterns.append((settings.folder, include, exclude))
    arguments.patterns = [found for found in patterns if any(found[1:])]
    arguments.repeated = [
        word
        for name in ("target", "zero", "precision", "offload", "optimizer_in_config", *PATTERNS)
        for value in _values(getattr(typed, name))
        if value is not None and (name, value) != ("target", "runtime")
        for word in _typed(name.replace("_", "-"), value)
    ]
    return arguments


def _refuse(message: str) -> NoReturn:
    from ds_migrate.cli.parser import make_parser

    make_parser().error(message)


def _values(found: object) -> list[object]:
    return found if isinstance(found, list) else [found]


def _typed(name: str, value: object) -> list[str]:
    """An option as it is typed."""
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    return [f"--{name}", str(value)]


def suggestion(word: str, known: Iterable[str]) -> str:
    """`` (did you mean ...?)``, or nothing when nothing is close."""
    import difflib

    by_folded = {option.casefold(): option for option in known}
    close = difflib.get_close_matches(word.casefold(), list(by_folded), 1)
    return f" (did you mean {by_folded[close[0]]}?)" if close else ""
