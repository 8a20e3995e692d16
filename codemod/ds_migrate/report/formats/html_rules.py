"""The pages of rules at the end of an HTML page, and the links that lead to them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape

from ds_migrate.report.html_parts import code
from ds_migrate.rules.codes import Code
from ds_migrate.rules.pages import page_of


def code_link(rule: str) -> str:
    """Return the code of a rule as a link to what the page has about it."""
    return f'<a class=code href="#rule-{rule}">{code(rule)}</a>'


def rule_sections(codes: Iterable[str]) -> Iterator[str]:
    """Yield the page of each code, folded."""
    wanted = set(codes)
    if wanted:
        yield "<h2 id=rules>Rules</h2>"
    for rule in Code:
        if rule in wanted:
            summary = escape(rule.summary.replace("`", ""))
            title = f"{code(rule)} {escape(rule.slug)} <span class=about>{summary}</span>"
            yield f'<details class=rule id="rule-{rule}"><summary>{title}</summary>'
            yield f"<pre>{escape(page_of(rule).text.partition(chr(10) * 2)[2])}</pre></details>"
