"""One experiment config file: read, edited, and the edit compared with its intention before anyone sees it."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass

from ds_migrate.experiment import yaml_splices
from ds_migrate.experiment.config_edit import Conversion, Entry, find_entry
from ds_migrate.experiment.model import ConfigFile
from ds_migrate.experiment.search_terms import textually_names
from ds_migrate.experiment.trial_lookup import Missing, Resolver, Unfollowed
from ds_migrate.experiment.yaml_edits import RefusedError, same_meaning
from ds_migrate.experiment.yaml_nodes import Node, UnreadableError, data
from ds_migrate.experiment.yaml_text import Source, read
from ds_migrate.findings import FileKind, FileResult, FileStatus, Finding, Severity, TrialStatus
from ds_migrate.rules.codes import Code


def plan_config(config: ConfigFile, resolver: Resolver, names: frozenset[str], target: str) -> FileResult | None:
    """The edit of one file, or the findings about it; None when there is no news. ``names``: what it may concern."""
    result = FileResult(config.path, FileKind.EXPERIMENT, before=config.data)
    try:
        source = read(config.data)
    except UnreadableError as error:
        return _unreadable(config, result, error, names)
    entries: list[tuple[int, Entry]] = []
    for i, root in enumerate(source.roots):
        entry = find_entry(root, config.path, resolver)
        if isinstance(entry, Missing):
            _note_missing(result, root.own("entrypoint") or root, entry.message)
        elif isinstance(entry, Unfollowed):
            if any(trial.status is TrialStatus.CONVERTED for trial in entry.trials):
                _note_unfollowed(result, root.own("entrypoint") or root, entry)
        elif entry is not None and all(trial.configs_follow for trial in entry.trials):
            entries.append((i, entry))
    missing = list(result.findings)
    attempt = _attempt(source, entries, target, careful=False)
    if attempt.wrong is not None or attempt.refused is not None:
        attempt = _attempt(source, entries, target, careful=True)
    if attempt.refused is not None:
        return _refused(config, result, attempt.refused)
    result.findings = sorted([*missing, *attempt.findings], key=lambda finding: (finding.line, finding.column))
    if attempt.text == source.text:
        # of a trial that an earlier run converted, only what is left to do is worth a word
        news = missing or any(trial.status is TrialStatus.CONVERTED for _, entry in entries for trial in entry.trials)
        return result if result.findings and news else None
    if not config.named:
        line = result.findings[0].line if result.findings else 1
        message = "this config runs a converted trial and has to follow it, but was not among the files to write"
        advice = f"run ds-migrate on the folder {config.path.parent.name}/"
        result.findings = [Finding(Code.CONFIG_NOT_NAMED, Severity.REVIEW, line, message, help=advice)]
        return result
    result.after, result.status = source.encode(attempt.text), FileStatus.CHANGED
    return result


@dataclass
class _Attempt:
    """The edited text of a file; ``wrong`` when it means something else, ``refused`` when nothing may change."""

    text: str
    findings: list[Finding]
    wrong: str | None = None
    refused: RefusedError | None = None


def _attempt(source: Source, entries: Sequence[tuple[int, Entry]], target: str, careful: bool) -> _Attempt:
    meanings = [data(root) for root in source.roots]
    splices: list[yaml_splices.Splice] = []
    findings: list[Finding] = []
    for i, entry in entries:
        conversion = Conversion(source.text, source.roots[i], entry, target, careful)
        try:
            meanings[i], found = conversion.run()
        except RefusedError as refused:
            return _Attempt(source.text, [], refused=refused)
        splices += found
        findings += conversion.findings
    if not splices:
        return _Attempt(source.text, findings)
    wrong: str | None = None
    for final_break in (
        False,
        True,
    ):  # a final newline may be part of a text (|) that is now the last thing in the file
        try:
            text = yaml_splices.apply(source.text, splices, final_break=final_break)
        except ValueError:
            wrong = "one place would have to hold two values"
            break
        why = same_meaning(text, meanings)
        if why is None:
            return _Attempt(text, findings)
        wrong = wrong or why
    message = f"the edit is not safe ({wrong}): a part of the config is shared through anchors or merge keys,"
    advice = "write the shared parts out, or edit this config by hand"
    return _Attempt(source.text, [], wrong, RefusedError(Code.SHARED_THROUGH_ANCHOR, source.roots[0], message, advice))


def _note_missing(result: FileResult, node: Node, message: str) -> None:
    message = f"the entrypoint names a trial that is not there: {message}; the config stays"
    advice = "correct the entrypoint, or delete the config if it is out of use"
    result.findings.append(
        Finding(Code.CONFIG_NAMES_NO_TRIAL, Severity.REVIEW, node.line, message, node.column, help=advice)
    )


def _note_unfollowed(result: FileResult, node: Node, entry: Unfollowed) -> None:
    names = ", ".join(trial.name for trial in entry.trials)
    message = f"the entrypoint runs {names} ({entry.word}) through a command that cannot be followed; the config stays"
    advice = (
        "let the entrypoint be module:Class or python3 script.py, which ds-train starts on every slot, and run again"
    )
    result.findings.append(
        Finding(Code.ENTRYPOINT_NOT_FOLLOWED, Severity.REVIEW, node.line, message, node.column, help=advice)
    )


def _unreadable(
    config: ConfigFile, result: FileResult, error: UnreadableError, names: frozenset[str]
) -> FileResult | None:
    """A finding when the file seems to be the config of a trial; nothing when it merely has such a word in it."""

    utf16 = config.data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    text = config.data.decode("utf-16" if utf16 else "utf-8-sig", errors="replace")
    if textually_names(text, names) is None:
        return None
    severity = Severity.ERROR if config.named else Severity.REVIEW
    result.status = FileStatus.ERROR if config.named else FileStatus.UNCHANGED
    result.findings = [
        Finding(
            Code.CONFIG_UNREADABLE,
            severity,
            error.line,
            f"cannot be read as an experiment config: {error.reason}",
            error.column,
            help="repair it and run again; it seems to name a converted trial",
        )
    ]
    return result


def _refused(config: ConfigFile, result: FileResult, refused: RefusedError) -> FileResult:
    result.status = FileStatus.BLOCKED if config.named else FileStatus.UNCHANGED
    severity = Severity.BLOCKED if config.named else Severity.REVIEW
    message = f"{str(refused).rstrip(',')}; the config is left as it was"
    place = refused.node.line, message, refused.node.column
    result.findings = [Finding(refused.code, severity, *place, help=refused.advice)]
    return result
