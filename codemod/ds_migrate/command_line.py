"""Parts of all commands on a terminal: parsers that suggest, help in colour, lines on stderr."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any, NoReturn

from ds_migrate.report.escaping import visible
from ds_migrate.suggestions import did_you_mean

_ERROR, _NOTICE = "1;31", "1"


class CommandParser(argparse.ArgumentParser):
    """Parser that suggests what was meant, and whose help and errors are coloured on a terminal."""

    def error(self, message: str) -> NoReturn:
        """Print what is wrong, with the usage, and exit with 2."""
        _, found, unknown = message.partition("unrecognized arguments: ")
        if found:
            options = [option for action in self._actions for option in action.option_strings]
            words = [word.partition("=")[0] for word in unknown.split() if word.startswith("-")]
            message += "".join(did_you_mean(word, options) for word in words)
        self.print_usage(sys.stderr)
        print_error(self.prog, f"error: {message}")
        raise SystemExit(2)

    def print_help(self, file: Any = None) -> None:
        """Print the help, in colour on a terminal."""
        if file is None and sys.stdout.isatty():
            from ds_migrate.report.help_colors import show_help

            show_help(sys.stdout, self.format_help())
        else:
            super().print_help(file)


def print_error(program: str, line: str) -> None:
    """Print what a program could not do to stderr, after its name."""
    _print(program, line, _ERROR)


def print_notice(program: str, line: str) -> None:
    """Print what a program did to stderr, after its name."""
    _print(program, line, _NOTICE)


def _print(program: str, text: str, style: str) -> None:
    lines = [visible(line) for line in text.splitlines()]
    print(colored(f"{program}:", style), "\n".join(lines), file=sys.stderr, flush=True)


def colored(text: str, style: str) -> str:
    """Return a text in a style (numbers of an ANSI sequence), plain where stderr is no terminal or NO_COLOR is set."""
    return f"\x1b[{style}m{text}\x1b[0m" if sys.stderr.isatty() and not os.environ.get("NO_COLOR") else text
