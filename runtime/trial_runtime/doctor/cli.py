"""The command line of ``ds-train --check``, also called ``python -m trial_runtime.doctor``."""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from ds_migrate.command_line import CommandParser, print_error

from trial_runtime.train.config.errors import ConfigError
from trial_runtime.train.requirements import missing_runtime

_EPILOG = """\
exit codes: 0 nothing is in the way of training
            1 something is: the rows marked x
            2 wrong usage, or a file cannot be read
"""
_PROG = "python -m trial_runtime.doctor"
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}


def make_parser(prog: str = _PROG) -> argparse.ArgumentParser:
    """Return the options of the command."""
    made = CommandParser(
        prog=prog,
        description="Show what this machine has to train with, which patches of DeepSpeed are in force, and what a "
        "DeepSpeed config would need.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument(
        "config",
        type=Path,
        nargs="?",
        metavar="CONFIG",
        help="a DeepSpeed config (ds_config.json), or an experiment config (CONFIG.yaml) that names one",
    )
    made.add_argument("--parameters", type=_count, metavar="N", help="the model's size, such as 7e9 or 7B")
    made.add_argument("--ranks", type=_ranks, metavar="N", help="number of data-parallel ranks")
    made.add_argument("--json", action="store_true", help="print the findings as JSON")
    return made


def main(arguments: Sequence[str] | None = None, prog: str = _PROG) -> int:
    """Run the command and return the exit code.

    Args:
        arguments: by default those of the process.
        prog: the command's name, for messages.
    """
    options = make_parser(prog).parse_args(arguments)
    name = "doctor" if prog == _PROG else prog.split()[0]
    environment = dict(os.environ)  # before imports add to it
    if missing := missing_runtime():
        print_error(name, missing)
        return 1
    logging.getLogger("DeepSpeed").setLevel(logging.CRITICAL)
    from trial_runtime.doctor import config_checks, machine, render
    from trial_runtime.doctor.config_source import read

    try:
        subject = read(options.config, options.ranks) if options.config is not None else None
    except ConfigError as error:
        print_error(name, str(error))
        return 2
    ranks = options.ranks or (subject.ranks if subject else None)
    sections = [machine.versions(), machine.accelerator(), machine.launcher(environment), machine.compiler()]
    sections.append(machine.patches())
    if subject is not None:
        sections += config_checks.check(subject.config, subject.source, ranks)
    if options.parameters is not None:
        config, available = (subject.config if subject else {}), (machine.memory_of_a_rank() if subject else None)
        sections.append(config_checks.model_states(config, options.parameters, ranks, available))
    if options.json:
        print(render.as_json(sections))
    else:
        render.show(sections, sys.stdout)
    return int(any(row.state == "bad" for section in sections for row in section.rows))


def _count(text: str) -> int:
    """Read ``7e9``, ``7B``, ``125M`` or ``1000``."""
    number = re.fullmatch(r"([0-9.]+(?:e[0-9]+)?)([kmbt]?)", text.strip().lower().replace("_", "").replace(",", ""))
    if number is None or not float(number[1]) >= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of parameters: write 7e9, 7B or 125M")
    return round(float(number[1]) * _UNITS[number[2]])


def _ranks(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of ranks: write 1 or more")
    return int(text)
