"""The report as one HTML page that needs nothing else: what was found, each file's versions, the rules behind them."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from importlib import resources

from ds_migrate import __version__
from ds_migrate.findings import FileResult, Finding, Report, Severity, TrialStatus
from ds_migrate.report.counts import count
from ds_migrate.report.escaping import place, visible
from ds_migrate.report.excerpt import excerpt
from ds_migrate.report.formats.html_diff import diff
from ds_migrate.report.formats.html_rules import code_link, rule_sections
from ds_migrate.report.html_parts import code, document, inline_code
from ds_migrate.report.patch import size
from ds_migrate.report.plain_text import ORDER, sorted_findings
from ds_migrate.report.summary import Command, Mode, memory_lines, next_steps, sentences

_EXCERPT = 200  # characters of a source line
_OPEN = 12  # files; of more, each is folded
_NAMES = {
    Severity.ERROR: "Errors",
    Severity.BLOCKED: "Blocked",
    Severity.REVIEW: "To review",
    Severity.CONVERTED: "Converted",
}
_TRIALS = {
    TrialStatus.CONVERTED: "becomes a DeepSpeedTrial",
    TrialStatus.ALREADY_DEEPSPEED: "is a DeepSpeedTrial already",
    TrialStatus.DECLINED: "is left as it is",
    TrialStatus.SKIPPED: "is skipped by a comment",
    TrialStatus.BLOCKED: "is blocked",
    TrialStatus.UNSUPPORTED_API: "is of an API that cannot be converted",
}


def to_html(report: Report, mode: Mode, command: Command) -> str:
    """Return the page."""
    style = resources.files(__package__).joinpath("page.css").read_text(encoding="utf-8")
    header = f"<header><h1>ds-migrate</h1><span class=version>{__version__}</span></header>"
    parts = [
        *_summary(report, mode, command),
        *_contents(report),
        *_findings(report),
        *_files(report),
        *rule_sections(finding.code for _, finding in report.findings()),
    ]
    return document("ds-migrate report", style, [header, "<main>", *parts, "</main>"])


def _summary(report: Report, mode: Mode, command: Command) -> Iterator[str]:
    for position, sentence in enumerate(sentences(report, mode)):
        yield f"<p{'' if position else ' class=lead'}>{escape(sentence)}</p>"
    memory = list(memory_lines(report))
    if memory:
        yield f"<details><summary>Memory</summary><pre>{escape(chr(10).join(memory))}</pre></details>"
    steps = list(next_steps(report, mode, command))
    if steps:
        yield "<dl class=steps>"
        yield from (f"<dt>{escape(why)}</dt><dd>{_command(line)}</dd>" for why, line in steps)
        yield "</dl>"


def _command(line: str) -> str:
    """Return a command that one click selects; its words are not broken."""
    return f"<code>{' '.join(f'<span class=u>{escape(word)}</span>' for word in line.split(' '))}</code>"


def _contents(report: Report) -> Iterator[str]:
    """Yield links to the files, with how many lines each gains and loses."""
    if len(report.files) < 2:
        return
    yield f"<nav aria-label=Contents><h2>{count(len(report.files), 'file')}</h2><ul>"
    for file in report.files:
        link = f'<a href="#{_anchor(report, file)}">{code(visible(str(file.path)))}</a>'
        yield f"<li>{link} {_state(file)}</li>"
    yield '<li><a href="#rules">Rules</a></li></ul></nav>'


def _state(file: FileResult) -> str:
    if not file.to_write:
        return "<span class=state>left as it is</span>"
    added, removed = size(file)
    lines = f"<span class=more>+{added}</span>" + (f" <span class=less>&minus;{removed}</span>" if removed else "")
    return lines + ("" if file.before is not None else " <span class=state>new file</span>")


def _findings(report: Report) -> Iterator[str]:
    for severity in ORDER[:-1]:
        found = [(file, finding) for file in report.files for finding in sorted_findings(file, [severity])]
        if not found:
            continue
        yield f"<section class={severity.value}><h2>{_NAMES[severity]} <span class=count>{len(found)}</span></h2><ul>"
        for file, finding in found:
            help_text = f"<p class=help>{inline_code(visible(finding.help))}</p>" if finding.help else ""
            link = f'<a href="#{_anchor(report, file)}">{escape(place(file, finding))}</a>'
            message = inline_code(visible(finding.message))
            line = _excerpt(file, finding)
            yield f"<li>{code_link(finding.code)} {message} <span class=at>{link}</span>{line}{help_text}</li>"
        yield "</ul></section>"


def _excerpt(file: FileResult, finding: Finding) -> str:
    """Return the source line of a blocked finding, marked; empty for others."""
    found = excerpt(file, finding, _EXCERPT)
    if found is None:
        return ""
    text = f"{escape(found.before)}<mark>{escape(found.marked)}</mark>{escape(found.after)}"
    return f"<pre class=excerpt><span class=n>{found.line}</span>{text}</pre>"


def _anchor(report: Report, file: FileResult) -> str:
    return f"file-{next(index for index, other in enumerate(report.files) if other is file)}"


def _files(report: Report) -> Iterator[str]:
    is_open = " open" if len(report.files) <= _OPEN else ""
    for file in report.files:
        yield f'<details class=file{is_open} id="{_anchor(report, file)}">'
        yield f"<summary>{code(visible(str(file.path)))} {_state(file)}</summary>"
        for trial in file.trials:
            name, state = escape(visible(trial.name)), _TRIALS[trial.status]
            yield f"<p class='trial {trial.status.value}'><b>{name}</b> {state}</p>"
        if file.to_write:
            yield from diff(file)
        yield "</details>"
