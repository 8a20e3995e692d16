"""The command line: arguments in, exit code out. Everything heavy is imported where it is needed.

Data goes to stdout (a patch, JSON, findings that were asked for), talk to stderr. On a terminal stdout shows it all.
"""

from __future__ import annotations

import os

from ds_migrate.cli import arguments as command_line
from ds_migrate.cli.streams import flushed, here, prepare_streams, print_lines, real, relative, say

TYPE_CHECKING = False  # typing's own name for it costs 2 ms of every run
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ds_migrate.cli.arguments import Arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line (``sys.argv`` by default) and return its exit code; never raises."""
    prepare_streams()
    try:
        return flushed(_run(command_line.parse(argv)))
    except SystemExit as end:  # argparse: help and version are 0, wrong usage is 2
        return flushed(end.code if isinstance(end.code, int) else 2)
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    except BrokenPipeError:
        return flushed(0)
    except Exception:
        import traceback

        say(traceback.format_exc(), "ds-migrate: this is a fault in ds-migrate itself; please report it")
        return 2


def _run(arguments: Arguments) -> int:
    if arguments.list_rules:
        return _list_rules()
    if arguments.explain:
        return _explain(arguments.explain)
    if arguments.completion:
        from ds_migrate.cli.completion import script

        print_lines([script(arguments.completion)])
        return 0
    if arguments.undo:
        return _undo(arguments.paths)
    return _migrate(arguments)


def _migrate(arguments: Arguments) -> int:
    from ds_migrate.cli.commands import concerned, migrate_sources, selection
    from ds_migrate.files.discovery import discover
    from ds_migrate.project.named_files import keep_concerned

    if arguments.paths == [command_line.STDIN]:
        from ds_migrate.cli import stdin

        return stdin.convert(arguments)
    chosen = selection(arguments)
    sources = discover(arguments.paths, chosen)
    keep_concerned(sources)
    for path in arguments.paths if arguments.patterns else ():
        if real(path).is_file() and not chosen(os.path.realpath(path)):
            say(f"note: {path} is left out by --include, --exclude or [tool.ds-migrate] in pyproject.toml")
    if arguments.format == "text" and not concerned(sources) and all(source.error is None for source in sources):
        from ds_migrate.cli.output import on_terminal
        from ds_migrate.report.counts import nothing_found

        sentence = nothing_found(len(sources))
        if on_terminal(arguments):
            print_lines([sentence])
        else:
            say(sentence)
        return 0
    return migrate_sources(sources, arguments)


def _undo(paths: Sequence[str]) -> int:
    from ds_migrate.files import journal, writer
    from ds_migrate.report.escaping import visible

    folder = here()
    named = real(paths[0]) if paths else folder
    try:
        entry = journal.last_entry(named if named.is_dir() else named.parent) or journal.last_entry(folder)
        if entry is None:
            say(f"ds-migrate: no run is left to undo in {visible(str(named))}")
            return 2
        created = {change.path for change in entry.changes if change.before is None}
        restored = writer.undo(entry)
    except (journal.JournalError, writer.RefusedError) as error:
        say(f"ds-migrate: {visible(str(error))}")
        return 2
    print_lines(f"{'removed' if path in created else 'restored'} {visible(relative(path))}" for path in restored)
    say("The last run is undone." if restored else "The last run was undone already, by hand.")
    return 0


def _list_rules() -> int:
    from ds_migrate.rules.codes import Code

    width = max(len(code.slug) for code in Code)
    print_lines(f"{code}  {code.slug:<{width}}  {code.summary.replace('`', '')}" for code in Code)
    return 0


def _explain(wanted: str) -> int:
    from ds_migrate.rules.codes import Code
    from ds_migrate.rules.pages import page_of

    for code in Code:
        if wanted.upper() == code or wanted.lower() == code.slug:
            print_lines([page_of(code).text])
            return 0
    known = [*(code.value for code in Code), *(code.slug for code in Code)]
    meant = command_line.suggestion(wanted, known)
    say(f"ds-migrate: no rule is called {wanted!r}{meant}; --list-rules names them all")
    return 2
