"""What ``argparse`` must know of the command line: every option, its help, and what was meant by a mistyped one."""

from __future__ import annotations

import argparse
import os

from ds_migrate import __version__
from ds_migrate.cli.arguments import FORMATS, OFFLOADS, PRECISIONS, SHELLS, suggestion

TYPE_CHECKING = False  # typing's own name for it costs 2 ms of every run
if TYPE_CHECKING:
    from typing import NoReturn

_USAGE = """\
%(prog)s PATH... [--write | --interactive | --check] [OPTION...]
       %(prog)s - [--stdin-filename FILE] < FILE
       %(prog)s --undo [PATH]
       %(prog)s --list-rules | --explain CODE | --completion SHELL | --version | --help"""
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
    """Defaults are not its business: it fills an ``Arguments``, which has them."""
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
        help="processes that search and convert (default: one for each core, as far as there is enough to do)",
    )

    output = parser.add_argument_group("output")
    output.add_argument(
        "--format",
        choices=FORMATS,
        help="text (default); the others are for machines, html for readers",
    )
    output.add_argument(
        "--view",
        choices=("auto", "unified", "split"),
        help="how a terminal shows changes; auto (default) is side by side from 160 columns on",
    )
    output.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        help="auto (default) colours a terminal; anywhere else the preview is a patch for git apply",
    )
    return parser


def _count(word: str) -> int:
    """A number from 1 on."""
    number = int(word)
    if number < 1:
        raise ValueError
    return number


_count.__name__ = "number"  # argparse: invalid number value
