"""One table of the options, for ``argparse`` and ``pyproject.toml``, and their defaults."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ds_migrate import __version__
from ds_migrate.command_line import CommandParser
from ds_migrate.files.ignored_codes import IgnoredCodes

STDIN = "-"
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


@dataclass(frozen=True)
class Option:
    """One option. ``keywords`` are those of ``argparse``. ``is_setting``: ``pyproject.toml`` may give it.
    ``is_repeated``: a command that is shown as the next step repeats it."""

    flags: Sequence[str]
    keywords: Mapping[str, Any]
    is_setting: bool = False
    is_repeated: bool = False

    @property
    def name(self) -> str:
        """The key in ``pyproject.toml``."""
        return self.flags[-1].removeprefix("--")

    @property
    def values(self) -> tuple[object, ...] | None:
        """Every value it may have; None when there are too many to list."""
        if self.keywords.get("action") is argparse.BooleanOptionalAction:
            return True, False
        choices = self.keywords.get("choices")
        return None if choices is None else tuple(choices)

    @property
    def is_list(self) -> bool:
        return self.keywords.get("action") == "append"


def number(word: str) -> int:
    """Return a number from 1 on. Raises ValueError."""
    if int(word) < 1:
        raise ValueError
    return int(word)


def _option(*flags: str, is_setting: bool = False, is_repeated: bool = False, **keywords: Any) -> Option:
    return Option(flags, keywords, is_setting, is_repeated)


def _how(*flags: str, **keywords: Any) -> Option:
    """Make an option that decides the result: a project may set it, and the next command repeats it."""
    return Option(flags, keywords, is_setting=True, is_repeated=True)


# Group -> options. Of "what to do" one is given at most.
WHAT_TO_DO = "what to do"
OPTIONS: Mapping[str, Sequence[Option]] = {
    WHAT_TO_DO: (
        _option("--write", action="store_true", help="apply the conversion"),
        _option("-i", "--interactive", action="store_true", help="ask before each trial, then apply what was accepted"),
        _option("--diff", action="store_true", help="preview: the default, but for -, which prints what it converts"),
        _option("--check", action="store_true", help="exit 1 when work remains; for CI and pre-commit"),
        _option("--undo", action="store_true", help="put back what the last --write wrote"),
        _option("--list-rules", action="store_true", help="name every rule"),
        _option("--explain", metavar="CODE", help="explain what a rule does and why"),
        _option(
            "--completion",
            metavar="SHELL",
            choices=("bash", "zsh", "fish"),
            help="print completions for bash, zsh or fish",
        ),
        _option("--version", action="version", version=f"ds-migrate {__version__}", help="show the version"),
        _option("-h", "--help", action="help", help="show this help"),
    ),
    "how to convert": (
        _how(
            "--plain",
            action=argparse.BooleanOptionalAction,
            help="convert plain PyTorch training loops, and leave trials",
        ),
        _how(
            "--target",
            choices=("runtime", "determined"),
            help="what the code will run on: the bundled trial_runtime (default), or the determined package",
        ),
        _how(
            "--zero",
            type=int,
            choices=range(4),
            metavar="{0,1,2,3}",
            help="ZeRO stage (default: 1 where it is exact, else 0)",
        ),
        _how(
            "--precision",
            choices=("fp32", "bf16", "fp16", "autocast"),
            help="what the engines compute in (default: what the trial asked for)",
        ),
        _how(
            "--offload",
            choices=("none", "optimizer", "parameters"),
            help="what lives in host memory: the optimizer's state (ZeRO stages 1 to 3), or also parameters (stage 3)",
        ),
        _how(
            "--optimizer-in-config",
            action=argparse.BooleanOptionalAction,
            help="define the optimizer in the DeepSpeed config where DeepSpeed's is identical",
        ),
        _how(
            "--config-style",
            choices=("inline", "json"),
            help="with --plain: the DeepSpeed config as a dict in the script (default), or as a JSON file beside it",
        ),
        _how(
            "--runtime",
            action=argparse.BooleanOptionalAction,
            help="with --plain: use helpers of trial_runtime (default), or refuse what DeepSpeed alone gets wrong",
        ),
    ),
    "which files": (
        _how("--include", metavar="PATTERN", action="append", help="only files that match, as in .gitignore"),
        _how("--exclude", metavar="PATTERN", action="append", help="no file that matches, as in .gitignore"),
        _how(
            "--follow",
            metavar="PACKAGE",
            action="append",
            help="convert a copy of a base class that a trial has in this package, beside the trial",
        ),
        _option("--stdin-filename", metavar="FILE", help="path to assume for standard input, to find its project"),
        _option(
            "--jobs",
            type=number,
            metavar="N",
            is_setting=True,
            help="processes that convert (default: one for each core, as far as there is enough to do)",
        ),
    ),
    "which findings": (
        _how(
            "--select",
            metavar="CODES",
            action="append",
            help="show only review findings of these codes, such as DSM350, callbacks or DSM4",
        ),
        _how("--ignore", metavar="CODES", action="append", help="accept review findings of these codes"),
    ),
    "output": (
        _option(
            "--format",
            choices=("text", "json", "sarif", "github", "html"),
            help="output format (default: text)",
        ),
        _option("-v", "--verbose", action="store_true", help="list every file and finding, however many there are"),
        _option(
            "--memory",
            action=argparse.BooleanOptionalAction,
            is_setting=True,
            help="show what training takes in memory, as it was, as converted and with other options",
        ),
        _option(
            "--view",
            choices=("auto", "unified", "split"),
            is_setting=True,
            help="how a terminal shows changes; auto (default) is side by side from 160 columns on",
        ),
        _option(
            "--color",
            choices=("auto", "always", "never"),
            is_setting=True,
            help="auto (default) colours a terminal; anywhere else the preview is a patch for git apply",
        ),
        _option(
            "--theme",
            choices=("auto", "light", "dark"),
            is_setting=True,
            help="background of the terminal; auto (default) is what COLORFGBG reports, else dark",
        ),
    ),
}
SETTINGS = {option.name: option for group in OPTIONS.values() for option in group if option.is_setting}
_REPEATED = [option.name for group in OPTIONS.values() for option in group if option.is_repeated]


@dataclass
class Arguments:
    """The arguments of a run, with their defaults.

    ``repeated`` are the options that the next command must repeat, ``patterns`` triples (base, include, exclude) that
    limit the run, ``ignored`` what ``select``, ``ignore`` and ``per_file_ignores`` mean.
    """

    paths: Sequence[str] = ()
    write: bool = False
    interactive: bool = False
    diff: bool = False
    check: bool = False
    undo: bool = False
    list_rules: bool = False
    explain: str | None = None
    completion: str | None = None
    plain: bool = False
    target: str = "runtime"
    zero: int | None = None
    precision: str | None = None
    offload: str = "none"
    optimizer_in_config: bool = False
    config_style: str = "inline"
    runtime: bool = True
    include: list[str] | None = None
    exclude: list[str] | None = None
    follow: list[str] | None = None
    select: list[str] | None = None
    ignore: list[str] | None = None
    per_file_ignores: Mapping[str, Sequence[str]] = field(default_factory=dict)
    ignored: IgnoredCodes = field(default_factory=IgnoredCodes)
    stdin_filename: str | None = None
    jobs: int | None = None
    format: str = "text"
    verbose: bool = False
    memory: bool = False
    view: str = "auto"
    color: str = "auto"
    theme: str = "auto"
    patterns: Sequence[tuple[str, Sequence[str] | None, Sequence[str] | None]] = field(default_factory=list)
    repeated: Sequence[str] = field(default_factory=list)

    @property
    def reads_stdin(self) -> bool:
        return STDIN in self.paths

    @property
    def only_prints(self) -> bool:
        """Return whether the run has nothing to do with a conversion."""
        return bool(self.undo or self.list_rules or self.explain or self.completion)


def make_parser() -> argparse.ArgumentParser:
    """Make a parser that gives None for what was not typed: defaults stand in ``Arguments``."""
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
    arguments.repeated = [word for name in _REPEATED for word in _as_typed(name, typed.get(name.replace("-", "_")))]
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
    """Return the words of an option; none for one that was not typed, or that says what holds anyway."""
    if value is None or (name, value) == ("target", "runtime"):
        return []
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    values = value if isinstance(value, list) else [value]
    return [word for one in values for word in (f"--{name}", str(one))]
