"""One table of the options, for ``argparse`` and ``pyproject.toml``."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ds_migrate import __version__


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
REPEATED = [option.name for group in OPTIONS.values() for option in group if option.is_repeated]
