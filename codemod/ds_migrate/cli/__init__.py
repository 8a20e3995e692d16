"""The command line: arguments in, exit code out.

Data goes to stdout (a patch, JSON, findings that were asked for), everything else to stderr. On a terminal stdout shows
it all.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence

from ds_migrate.cli import commands, rules
from ds_migrate.cli.arguments import Arguments
from ds_migrate.cli.output import OutputError, flushed, prepare_streams, warn
from ds_migrate.cli.parser import parse


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line (``sys.argv`` by default) and return its exit code; never raises."""
    prepare_streams()
    try:
        return flushed(_exit_code(argv))
    except KeyboardInterrupt:
        warn("interrupted")
        return 130
    except OutputError as error:
        warn(f"ds-migrate: the output cannot be written: {error}; give it another place and run again")
        return 2
    except Exception:
        warn(traceback.format_exc(), "ds-migrate: this is a fault in ds-migrate itself; please report it")
        return 2


def _exit_code(argv: Sequence[str] | None) -> int:
    try:
        return _run(parse(argv))
    except SystemExit as end:  # argparse: help and version are 0, wrong usage is 2
        return end.code if isinstance(end.code, int) else 2
    except BrokenPipeError:
        return 0


def _run(arguments: Arguments) -> int:
    if arguments.list_rules:
        return rules.list_rules(arguments)
    if arguments.explain:
        return rules.explain(arguments.explain, arguments)
    if arguments.completion:
        return commands.print_completion(arguments.completion)
    if arguments.undo:
        return commands.undo(arguments.paths)
    if arguments.reads_stdin:
        return commands.convert_stdin(arguments)
    return commands.convert_paths(arguments)
