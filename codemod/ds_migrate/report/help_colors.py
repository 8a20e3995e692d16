"""The help of a command in the colours of its reports."""

from __future__ import annotations

from typing import IO

from rich.text import Text

from ds_migrate.report.terminal import terminal_console


def show_help(stream: IO[str], text: str) -> None:
    """Print the help that ``argparse`` made."""
    shown = Text(text.rstrip("\n"))
    shown.highlight_regex(r"(?m)^[a-z][a-z ]*:", "bold yellow")
    shown.highlight_regex(r"(?<![\w-])--?[a-z][a-z-]*", "cyan")
    shown.highlight_regex(r"(?<=[\w\]}] )\b[A-Z]{3,}\b(?!\.)", "italic")
    terminal_console(stream, "auto").print(shown, no_wrap=True, overflow="ignore", crop=False)
