"""``ds-migrate - < trial.py``: one file from standard input, converted, on standard output.

As with formatters the source comes out whatever happens: unchanged when there is nothing to convert or the trial is
blocked (exit code 1, the reason on stderr). ``--diff``, ``--check`` and ``--format`` print what they print for files.
"""

from __future__ import annotations

import os
import sys

from ds_migrate.cli.streams import say
from ds_migrate.files.discovery import Source, project_root
from ds_migrate.files.prefilter import may_hold_trial
from ds_migrate.project.named_files import keep_concerned

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ds_migrate.cli.arguments import Arguments


def convert(arguments: Arguments) -> int:
    """Read, convert, print; the exit code."""
    from ds_migrate.cli.commands import migrate_sources, report_of, selection

    data = sys.stdin.buffer.read()
    source = _source(arguments.stdin_filename or "stdin.py", data)
    prints_source = not (arguments.diff or arguments.check or arguments.format != "text")
    left_out = not selection(arguments)(source.real_name)
    if prints_source and (source.data is None or left_out):
        _print(data)
        return 0
    sources = [] if left_out else [source]
    if not prints_source:
        return migrate_sources(sources, arguments)

    from ds_migrate.report import plain
    from ds_migrate.report.summary import Mode, exit_code

    report = report_of(sources, arguments)
    own = next((file for file in report.files if file.path == source.path), None)
    _print(data if own is None or own.after is None else own.after)
    say(*plain.finding_lines(report, plain.ORDER[:-1]))
    others = [str(file.path) for file in report.files if file is not own and file.to_write]
    if others:
        say(f"note: the conversion needs {' and '.join(others)} too, which --write on the file itself makes")
    return exit_code(report, Mode.WRITE)


def _source(name: str, data: bytes) -> Source:
    """Return the file as it stands in its project. Its bytes are kept only if it may hold a trial."""
    is_file = os.path.isfile(name)
    kept = data if is_file or may_hold_trial(data) else None
    source = Source(name, os.path.realpath(name), str(project_root(name)), kept, is_named_itself=is_file)
    keep_concerned([source])
    return source


def _print(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
