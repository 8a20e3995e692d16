"""``--list-rules`` and ``--explain``: as text, in colour on a terminal, or as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

from ds_migrate.cli.arguments import Arguments
from ds_migrate.cli.output import is_on_terminal, print_lines, stdout_errors, warn
from ds_migrate.rules.codes import Code, unknown_code


def list_rules(arguments: Arguments) -> int:
    """Print every code with its name and summary."""
    if arguments.format == "json":
        print_lines([json.dumps([_as_json(code) for code in Code], indent=2)])
    elif is_on_terminal(arguments):
        from ds_migrate.report.rule_pages import show_rules
        from ds_migrate.report.terminal import terminal_console

        with stdout_errors():
            show_rules(terminal_console(sys.stdout, arguments.color))
    else:
        width = max(len(code.slug) for code in Code)
        print_lines(f"{code}  {code.slug:<{width}}  {code.summary.replace('`', '')}" for code in Code)
    return 0


def explain(wanted: str, arguments: Arguments) -> int:
    """Print the page of a rule, which is named by its code or its name."""
    from ds_migrate.rules.pages import page_of

    code = next((code for code in Code if wanted.upper() == code or wanted.lower() == code.slug), None)
    if code is None:
        found = [code for code in Code if wanted.lower() in page_of(code).text.lower()] if len(wanted) > 2 else []
        places = f"these words are on the pages of {', '.join(found)}" if found else "--list-rules names them all"
        warn(f"ds-migrate: {unknown_code(wanted)}; {places}")
        return 2
    page = page_of(code)
    if arguments.format == "json":
        blocked = [{"message": each.message, "way_out": each.way_out} for each in page.blocked]
        print_lines([json.dumps({**_as_json(code), "sections": dict(page.sections), "blocked": blocked}, indent=2)])
    elif is_on_terminal(arguments):
        from ds_migrate.report.rule_pages import show_page
        from ds_migrate.report.terminal import terminal_console

        with stdout_errors():
            show_page(terminal_console(sys.stdout, arguments.color), page)
    else:
        print_lines([page.text])
    return 0


def _as_json(code: Code) -> dict[str, Any]:
    from ds_migrate.rules.outcomes import GROUPS, outcomes_of

    results = [severity.value for severity in outcomes_of(code)]
    group = GROUPS[code.group][0]
    return {"code": code.value, "name": code.slug, "group": group, "results": results, "summary": code.summary}
