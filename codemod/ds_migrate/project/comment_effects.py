"""The effect of control comments on a report: accepted findings leave it, comments without effect enter it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from pathlib import Path

from ds_migrate.findings import FileKind, FileResult, Finding, Severity
from ds_migrate.project.control_comments import Comment, Comments, Marker
from ds_migrate.rules.codes import Code, unknown_code
from ds_migrate.suggestions import did_you_mean

_KINDS = {".yaml": FileKind.EXPERIMENT, ".yml": FileKind.EXPERIMENT}

_Places = dict[tuple[int, str], list[Finding]]  # by line and code


def results_of_comments(
    results: Iterable[FileResult], comments: Mapping[Path, Comments], skips: Set[tuple[Path, int]]
) -> tuple[list[FileResult], list[tuple[Path, Finding]]]:
    """Return the results with what comments change in them, and the findings that comments accept.

    ``skips``: path and line of the comments that skip a trial.
    """
    by_path = {result.path: result for result in results}
    accepted: list[tuple[Path, Finding]] = []
    for path, found in comments.items():
        file = by_path.get(path) or FileResult(path, _KINDS.get(path.suffix, FileKind.PYTHON))
        file.findings += map(_marker, found.markers)
        places: _Places = {}
        for finding in file.findings:
            places.setdefault((finding.line, finding.code), []).append(finding)
        useless = [
            finding
            for comment in found.controls
            for finding in _useless(comment, places, (path, comment.line) in skips)
        ]
        accepts = found.accepted
        taken: list[Finding] = []
        stay: list[Finding] = []
        for finding in file.findings:
            is_taken = finding.severity is Severity.REVIEW and (finding.line, finding.code) in accepts
            (taken if is_taken else stay).append(finding)
        file.findings = [*stay, *useless]
        accepted += [(path, finding) for finding in taken]
        if file.findings:
            by_path[path] = file
    return list(by_path.values()), accepted


def _marker(marker: Marker) -> Finding:
    message = f"a marker is left: {marker.text}"
    advice = "do what it asks for, then delete the comment"
    return Finding(Code.LEFTOVER_MARKER, Severity.REVIEW, marker.line, message, marker.column, help=advice)


def _useless(comment: Comment, places: _Places, skips_a_trial: bool) -> Iterator[Finding]:
    """Yield what is wrong with a comment, code by code; nothing when it has its effect."""

    def finding(message: str, advice: str) -> Finding:
        return Finding(Code.CONTROL_COMMENT, Severity.REVIEW, comment.line, message, comment.column, help=advice)

    if comment.is_skip:
        if not skips_a_trial:
            yield finding("this skip skips no trial", "put it on the line of the trial's class, or delete it")
        return
    if comment.word != "ignore":
        meant = did_you_mean(comment.word, ("skip", "ignore"))
        yield finding(f"{comment.word!r} is not a word that ds-migrate knows{meant}", "write skip, or ignore[DSM...]")
        return
    if not comment.codes:
        yield finding("this ignore names no code", "write ignore[DSM...] with the code of the finding")
    for code in comment.codes:
        concerned = [f for line in sorted({comment.line, comment.target}) for f in places.get((line, code), ())]
        problem = _problem(code, concerned)
        if problem is not None:
            yield finding(*problem)


def _problem(code: str, concerned: list[Finding]) -> tuple[str, str] | None:
    """Return (message, help) for a code that an ignore names; None when it accepts something."""
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
    return unknown_code(code), "ds-migrate --list-rules names them all"
