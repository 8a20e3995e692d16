"""The command line parsed: what was typed, then what ``pyproject.toml`` gives."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from ds_migrate.cli.arguments import Arguments
from ds_migrate.cli.options_table import OPTIONS, REPEATED, WHAT_TO_DO
from ds_migrate.command_line import CommandParser

_USAGE = """\
%(prog)s PATH... [--write | --interactive | --check] [OPTION...]
       %(prog)s - [--stdin-filename FILE] < FILE
       %(prog)s --undo [PATH]
       %(prog)s --list-rules | --explain CODE [--format json]
       %(prog)s --completion SHELL | --version | --help"""


_DESCRIPTION = """\
Turn Determined AI PyTorchTrial code into DeepSpeedTrial code.
Without --write or --check this is a preview: it shows what would change and
writes nothing."""


_EXIT_CODES = """\
exit codes:
  0    nothing is left to do; always for a preview that could read every file
  1    work remains: with --check a trial to convert, a blocked trial or a
       leftover marker; with --write a trial that stayed blocked; with
       --interactive one that was declined
  2    wrong usage, or a file could not be read, parsed or written
  130  interrupted
"""


def make_parser() -> argparse.ArgumentParser:
    """Make a parser that gives None for what was not typed: the defaults are those of ``Arguments``."""
    parser = CommandParser(
        prog="ds-migrate",
        usage=_USAGE,
        description=_DESCRIPTION,
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # an abbreviation that works today could mean two things tomorrow
        add_help=False,
    )
    parser.add_argument(
        "paths",
        metavar="PATH",
        nargs="*",
        help="Python file, notebook, experiment config or folder; - is standard input",
    )
    for title, options in OPTIONS.items():
        group = parser.add_argument_group(title)
        add: Callable[..., object] = group.add_argument
        if title == WHAT_TO_DO:
            add = group.add_mutually_exclusive_group().add_argument
        for option in options:
            add(*option.flags, **option.keywords)
    return parser


def parse(argv: Sequence[str] | None = None) -> Arguments:
    """Return the arguments of a run. Raises SystemExit: 0 after help or version, 2 for wrong usage."""
    from ds_migrate.cli.settings import SettingsError, settings_for

    words = sys.argv[1:] if argv is None else argv
    parser = make_parser()
    # Options may stand between paths, except after "--", which only the plain way of parsing understands.
    namespace = (parser.parse_args if "--" in words else parser.parse_intermixed_args)(words)
    typed = {name: value for name, value in vars(namespace).items() if value is not None}
    arguments = Arguments(**typed)
    _check_usage(parser, arguments)
    if arguments.only_prints:
        return arguments
    try:
        settings = settings_for([arguments.stdin_filename or "."] if arguments.reads_stdin else arguments.paths)
    except SettingsError as error:
        parser.error(str(error))
    patterns = [(os.curdir, arguments.include, arguments.exclude)]
    if settings is not None:
        given = {key.replace("-", "_"): value for key, value in settings.values.items()}
        include, exclude = (None if key in typed else given.get(key) for key in ("include", "exclude"))
        patterns.append((settings.folder, include, exclude))
        arguments = Arguments(**{**given, **typed})
    if arguments.select or arguments.ignore or arguments.per_file_ignores:
        from ds_migrate.cli.code_selection import ignored_codes

        try:
            folder = "" if settings is None else settings.folder
            arguments.ignored = ignored_codes(arguments, folder, arguments.per_file_ignores)
        except SettingsError as error:
            parser.error(str(error))
    arguments.patterns = [found for found in patterns if any(found[1:])]
    arguments.repeated = [word for name in REPEATED for word in _as_typed(name, typed.get(name.replace("-", "_")))]
    return arguments


def _check_usage(parser: argparse.ArgumentParser, arguments: Arguments) -> None:
    if not (arguments.paths or arguments.only_prints):
        parser.error("name at least one PATH, for example: ds-migrate .")
    if arguments.undo and len(arguments.paths) > 1:
        parser.error("--undo takes one PATH at most: the project whose last run is undone")
    formats = ("text", "json") if arguments.list_rules or arguments.explain else ("text",)
    if arguments.only_prints and arguments.format not in formats:
        parser.error(f"--format {arguments.format} is for a preview, --check and --write")
    if arguments.only_prints:
        return
    for name in ("precision", "follow") if arguments.plain else ():
        if getattr(arguments, name):
            parser.error(f"--{name.replace('_', '-')} is for trials: --plain keeps what the program has")
    if arguments.plain and (arguments.target, arguments.offload) != ("runtime", "none"):
        parser.error("--target and --offload are for trials: --plain keeps what the program has")
    if not arguments.plain and (arguments.config_style, arguments.runtime) != ("inline", True):
        parser.error("--config-style and --no-runtime are for plain loops: add --plain")
    if arguments.reads_stdin:
        if len(arguments.paths) > 1:
            parser.error("- reads one file from standard input: name nothing beside it")
        for option in ("write", "interactive"):
            if getattr(arguments, option):
                parser.error(f"--{option} has no file to write: - prints what it converts")
    elif arguments.stdin_filename:
        parser.error("--stdin-filename names what - reads: ds-migrate - --stdin-filename FILE < FILE")
    if arguments.interactive and arguments.format != "text":
        parser.error("--interactive asks on the terminal: it has no --format")


def _as_typed(name: str, value: object) -> list[str]:
    """Return the words of an option; none for one that was not typed, or that names what holds anyway."""
    if value is None or (name, value) == ("target", "runtime"):
        return []
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    values = value if isinstance(value, list) else [value]
    return [word for one in values for word in (f"--{name}", str(one))]
