"""What the comments of ``inline`` change in a report: accepted findings go, comments without effect are said."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ds_migrate.files.discovery import CONFIG_SUFFIXES, Source
from ds_migrate.files.notebook import Notebook, NotebookError
from ds_migrate.findings import FileKind, FileResult, Finding, Report, Severity, TrialStatus
from ds_migrate.project.inline_comments import WORD, Comment, comments_in
from ds_migrate.project.module_index import module_facts
from ds_migrate.rules.codes import Code

CODE = Code.CONTROL_COMMENT
_KINDS = {".ipynb": FileKind.NOTEBOOK, ".yaml": FileKind.EXPERIMENT, ".yml": FileKind.EXPERIMENT}


def result_of(report: Report, source: Source) -> FileResult:
    """The file's result, made when there is none yet."""
    for file in report.files:
        if file.path == source.path:
            return file
    file = FileResult(source.path, _KINDS.get(source.path.suffix, FileKind.PYTHON), before=source.data)
    report.files.append(file)
    return file


def apply_comments(report: Report, sources: list[Source]) -> None:
    """Take out the review findings that comments accept, and report each comment that does nothing."""
    for source in sources:
        if source.data is None or WORD not in source.data:
            continue
        module = _module(source)
        comments = comments_in(source.data if module is None else module.data, python=module is not None)
        if not comments:
            continue
        file = result_of(report, source)
        skips = _skips(file, module.data) if module is not None else set()
        placed = [_Placed(comment, *_place(module, comment), comment.line in skips) for comment in comments]
        idle = [finding for comment in placed for finding in _idle(comment, file)]
        kept = [f for f in file.findings if not any(comment.accepts(f) for comment in placed)]
        report.ignored += len(file.findings) - len(kept)
        file.findings = kept + idle
    report.files = [file for file in report.files if file.trials or file.findings or file.to_write]


@dataclass(frozen=True)
class _Placed:
    """A comment where the report has it: in a notebook, lines count from the start of a cell."""

    comment: Comment
    cell: int | None
    line: int
    target: int
    skips: bool  # it is a skip, and the trial is skipped

    def concerns(self, finding: Finding) -> bool:
        here = finding.cell == self.cell and finding.line in (self.line, self.target)
        return here and self.comment.ignores(finding.code)

    def accepts(self, finding: Finding) -> bool:
        return finding.severity is Severity.REVIEW and self.concerns(finding)


@dataclass(frozen=True)
class _Module:
    """The Python in a file: all of it, or a notebook's cells."""

    data: bytes
    notebook: Notebook | None = None


def _module(source: Source) -> _Module | None:
    """None for a config."""
    assert source.data is not None
    if source.path.suffix in CONFIG_SUFFIXES:
        return None
    if source.path.suffix != ".ipynb":
        return _Module(source.data)
    try:
        notebook = Notebook.parse(source.data)
    except NotebookError:
        return _Module(b"")
    return _Module(notebook.module(), notebook)


def _skips(file: FileResult, module: bytes) -> set[int]:
    """Lines of the skips that skip a trial."""
    skipped = {trial.name for trial in file.trials if trial.status is TrialStatus.SKIPPED}
    return {cls.skip for cls in module_facts(module).classes if cls.name in skipped} if skipped else set()


def _place(module: _Module | None, comment: Comment) -> tuple[int | None, int, int]:
    """(cell, line, line it is about), as findings count them."""
    if module is None or module.notebook is None:
        return None, comment.line, comment.target
    cell, line = module.notebook.locate(comment.line)
    return cell, line, module.notebook.locate(comment.target)[1]


def _idle(placed: _Placed, file: FileResult) -> Iterator[Finding]:
    """What is wrong with a comment, code by code; nothing when it does its work."""
    comment = placed.comment

    def said(message: str, help_text: str) -> Finding:
        return Finding(CODE, Severity.REVIEW, placed.line, message, comment.column, placed.cell, help=help_text)

    if comment.skips:
        if not placed.skips:
            yield said("this skip skips no trial", "put it on the line of the trial's class, or delete it")
        return
    if comment.word != "ignore":
        from ds_migrate.cli.arguments import suggestion

        meant = suggestion(comment.word, ("skip", "ignore"))
        yield said(f"{comment.word!r} is nothing that ds-migrate knows{meant}", "write skip, or ignore[DSM...]")
        return
    if not comment.codes:
        yield said("this ignore names no code", "write ignore[DSM...] with the code of the finding")
    for code in comment.codes:
        concerned = [f for f in file.findings if placed.concerns(f) and f.code == code]
        yield from (said(*problem) for problem in [_problem(code, concerned)] if problem is not None)


def _problem(code: str, concerned: list[Finding]) -> tuple[str, str] | None:
    """(message, help) for a code that an ignore names; None when it accepts something."""
    if any(finding.severity is Severity.REVIEW for finding in concerned):
        return None
    if any(finding.severity in (Severity.BLOCKED, Severity.ERROR) for finding in concerned):
        return f"{code} is blocked here, which cannot be ignored", "to leave the trial as it is: # ds-migrate: skip"
    if concerned:
        return (
            f"{code} is converted here with the same numbers: there is nothing to ignore",
            "delete the comment; to leave the trial as it is: # ds-migrate: skip",
        )
    known = [known.value for known in Code]
    if code in known:
        return f"this ignore[{code}] ignores nothing", "delete it"
    from ds_migrate.cli.arguments import suggestion

    return f"no rule is called {code!r}{suggestion(code, known)}", "ds-migrate --list-rules names them all"
