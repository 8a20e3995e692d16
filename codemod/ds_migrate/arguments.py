"""The arguments of ``ds-migrate``, checked, with a suggestion for what was mistyped."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Sequence

from ds_migrate import __version__

TYPE_CHECKING = False  # typing's own name for it costs 2 ms of every run
if TYPE_CHECKING:
    from typing import NoReturn

_USAGE = """\
%(prog)s PATH... [--write | --interactive | --check] [OPTION...]
       %(prog)s - [--stdin-filename FILE] < FILE
       %(prog)s --undo [PATH]
       %(prog)s --list-rules | --explain CODE | --completion SHELL | --version | --help"""
STDIN = "-"
SHELLS = ("bash", "zsh", "fish")
PRECISIONS = ("fp32", "bf16", "fp16", "autocast")
OFFLOADS = ("none", "optimizer", "parameters")
FORMATS = ("text", "json", "sarif", "github", "html")
_DESCRIPTION = """\
Turn Determined AI PyTorchTrial code into DeepSpeedTrial code.
Without --write or --check this is a preview: it shows what would change, and writes nothing."""
_EXIT_CODES = """\
exit codes:
  0    nothing is left to do; always for a preview that could read every file
  1    work remains: with --check a trial to convert, a blocked trial or a leftover
       marker; with --write a trial that stayed blocked; with --interactive one that
       was declined
  2    wrong usage, or a file could not be read, parsed or written
  130  interrupted
"""


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The arguments of a run. Raises SystemExit: 0 after help or version, 2 for wrong usage.

    Beside the options: ``repeated``, those that the next command must repeat, and ``patterns``, triples (base, include,
    exclude) of what the run is limited to.
    """
    parser = make_parser()
    words = sys.argv[1:] if argv is None else argv
    arguments = _parsed(parser, words)
    asks_for_text = arguments.undo or arguments.list_rules or arguments.explain or arguments.completion
    if not (arguments.paths or asks_for_text):
        parser.error("name at least one PATH, for example: ds-migrate .")
    if arguments.undo and len(arguments.paths) > 1:
        parser.error("--undo takes one PATH at most: the project whose last run is undone")
    if asks_for_text and arguments.format != "text":
        parser.error(f"--format {arguments.format} is for a preview, --check and --write")
    if not asks_for_text:
        _check_stdin(parser, arguments)
        arguments = _with_settings(parser, words, arguments)
    return arguments


def _parsed(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    # Options may stand between paths, except after "--", which only the plain way of parsing understands.
    return parser.parse_args(words) if "--" in words else parser.parse_intermixed_args(words)


def _check_stdin(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
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


def _with_settings(
    parser: argparse.ArgumentParser, words: Sequence[str], arguments: argparse.Namespace
) -> argparse.Namespace:
    """The arguments once more, where ``pyproject.toml`` says what those are that the command line is silent about."""
    from ds_migrate.settings import PATTERNS, SettingsError, settings_for

    typed = vars(arguments)
    try:
        settings = settings_for([arguments.stdin_filename or "."] if STDIN in arguments.paths else arguments.paths)
    except SettingsError as error:
        parser.error(str(error))
    patterns = [(os.curdir, typed["include"], typed["exclude"])]
    if settings is not None:
        values = settings.values.items()
        parser.set_defaults(**{key.replace("-", "_"): value for key, value in values if key not in PATTERNS})
        arguments = _parsed(parser, words)
        include, exclude = (settings.values.get(key) if typed[key] is None else None for key in PATTERNS)
        patterns.append((settings.folder, include, exclude))
    arguments.patterns = [found for found in patterns if any(found[1:])]
    arguments.repeated = [
        word
        for name in ("target", "zero", "precision", "offload", "optimizer_in_config", *PATTERNS)
        for value in (typed[name] if isinstance(typed[name], list) else [typed[name]])
        if value is not None and (name, value) != ("target", "runtime")
        for word in _typed(name.replace("_", "-"), value)
    ]
    return arguments


def _typed(name: str, value: object) -> list[str]:
    """An option as it is typed."""
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    return [f"--{name}", str(value)]


def _count(word: str) -> int:
    """A number from 1 on."""
    number = int(word)
    if number < 1:
        raise ValueError
    return number


_count.__name__ = "number"  # argparse: invalid number value


def suggestion(word: str, known: Iterable[str]) -> str:
    """`` (did you mean ...?)``, or nothing when nothing is close."""
    import difflib

    by_folded = {option.casefold(): option for option in known}
    close = difflib.get_close_matches(word.casefold(), list(by_folded), 1)
    return f" (did you mean {by_folded[close[0]]}?)" if close else ""


class _Parser(argparse.ArgumentParser):
    """argparse that says what was meant."""

    def error(self, message: str) -> NoReturn:
        _, found, unknown = message.partition("unrecognized arguments: ")
        if found:
            options = [option for action in self._actions for option in action.option_strings]
            words = [word.partition("=")[0] for word in unknown.split() if word.startswith("-")]
            message += "".join(suggestion(word, options) for word in words)
        super().error(message)


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """argparse makes one for every argument, and one that is not told a width imports ``shutil`` (2 ms) to ask it."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=_columns() - 2)


def _columns() -> int:
    """The terminal's width as ``shutil.get_terminal_size`` tells it."""
    wanted = os.environ.get("COLUMNS", "")
    if wanted.isdecimal() and int(wanted):
        return int(wanted)
    try:
        return os.get_terminal_size().columns or 80
    except OSError:
        return 80


def make_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="ds-migrate",
        usage=_USAGE,
        description=_DESCRIPTION,
        epilog=_EXIT_CODES,
        formatter_class=_Formatter,
        allow_abbrev=False,  # an abbreviation that works today could mean two things tomorrow
        add_help=False,
    )
    parser.add_argument(
        "paths",
        metavar="PATH",
        nargs="*",
        help="Python file, notebook, experiment config or folder; - is standard input",
    )

    what = parser.add_argument_group("what to do").add_mutually_exclusive_group()
    what.add_argument("--write", action="store_true", help="apply the conversion")
    what.add_argument(
        "-i", "--interactive", action="store_true", help="ask before each trial, then apply what was accepted"
    )
    what.add_argument(
        "--diff", action="store_true", help="preview: the default, but for -, which prints what it converts"
    )
    what.add_argument("--check", action="store_true", help="exit 1 when work remains; for CI and pre-commit")
    what.add_argument("--undo", action="store_true", help="put back what the last --write wrote")
    what.add_argument("--list-rules", action="store_true", help="name every rule")
    what.add_argument("--explain", metavar="CODE", help="say what a rule does and why")
    what.add_argument("--completion", metavar="SHELL", choices=SHELLS, help="print completions for bash, zsh or fish")
    what.add_argument("--version", action="version", version=f"ds-migrate {__version__}", help="show the version")
    what.add_argument("-h", "--help", action="help", help="show this help")

    how = parser.add_argument_group("how to convert")
    how.add_argument(
        "--target",
        choices=("runtime", "determined"),
        default="runtime",
        help="what the code will run on: the bundled trial_runtime (default), or the determined package",
    )
    how.add_argument(
        "--zero",
        type=int,
        choices=range(4),
        metavar="{0,1,2,3}",
        help="ZeRO stage (default: 1 where it is exact, else 0)",
    )
    how.add_argument(
        "--precision",
        choices=PRECISIONS,
        help="what the engines compute in (default: what the trial asked for)",
    )
    how.add_argument(
        "--offload",
        choices=OFFLOADS,
        help="what lives in host memory: the optimizer's state (ZeRO stages 1 to 3), or also parameters (stage 3)",
    )
    how.add_argument(
        "--optimizer-in-config",
        action=argparse.BooleanOptionalAction,
        help="let DeepSpeed make the optimizer, where it makes the same one",
    )

    which = parser.add_argument_group("which files")
    which.add_argument("--include", metavar="PATTERN", action="append", help="only files that match, as in .gitignore")
    which.add_argument("--exclude", metavar="PATTERN", action="append", help="no file that matches, as in .gitignore")
    which.add_argument("--stdin-filename", metavar="FILE", help="the file that - reads, to know its project")

    which.add_argument(
        "--jobs",
        type=_count,
        metavar="N",
        help="processes that convert (default: one for each core, as far as there are trials enough)",
    )

    output = parser.add_argument_group("output")
    output.add_argument(
        "--format",
        choices=FORMATS,
        default="text",
        help="text (default); the others are for machines, html for readers",
    )
    output.add_argument(
        "--view",
        choices=("auto", "unified", "split"),
        default="auto",
        help="how a terminal shows changes; auto (default) is side by side from 160 columns on",
    )
    output.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="auto (default) colours a terminal; anywhere else the preview is a patch for git apply",
    )
    return parser
