"""All experiment configs of a run: which of them concern the trials, and what becomes of each."""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ds_migrate.experiment import codes
from ds_migrate.experiment.model import ConfigFile, TrialFacts
from ds_migrate.experiment.names import may_name, needles, textually_names
from ds_migrate.result import FileKind, FileResult, FileStatus, Finding, Severity, TrialStatus

if TYPE_CHECKING:
    from ds_migrate.experiment.convert import Entry
    from ds_migrate.experiment.resolve import Resolver


def plan(
    configs: Sequence[ConfigFile],
    trials: Sequence[TrialFacts],
    scripts: Mapping[Path, Sequence[str]],
    *,
    target: str = "runtime",
    root: Path | None = None,
) -> list[FileResult]:
    """What becomes of the experiment configs of converted trials; a file without news has no result.

    ``scripts``: absolute path of a script -> the names of the trials that it runs. ``target``: ``"runtime"`` or
    ``"determined"``. ``root``: the project's root, where the search for a context directory ends.

    A config is edited when it is ``named`` and every trial it runs was converted. No byte changes in one that runs a
    blocked trial, cannot be parsed, names a class that is not there, or whose edit would touch what an anchor shares.
    """
    names = needles(trials, scripts)
    results: list[FileResult] = []
    resolver: Resolver | None = None
    for config in configs:
        if not names or not may_name(config.data, names):
            continue
        if resolver is None:
            from ds_migrate.experiment.resolve import Resolver

            resolver = Resolver(trials, scripts, root)
        result = _plan_one(config, resolver, names, target)
        if result is not None:
            results.append(result)
    return results


def _plan_one(config: ConfigFile, resolver: Resolver, names: frozenset[str], target: str) -> FileResult | None:
    from ds_migrate.experiment import splice
    from ds_migrate.experiment.convert import Conversion, find_entry
    from ds_migrate.experiment.edits import RefusedError, same_meaning
    from ds_migrate.experiment.resolve import Missing
    from ds_migrate.experiment.text import decode
    from ds_migrate.experiment.tree import UnreadableError, data, parse

    result = FileResult(config.path, FileKind.EXPERIMENT, before=config.data)
    try:
        source = decode(config.data)
        roots = parse(source.text)
        meanings = [data(root) for root in roots]
    except UnreadableError as error:
        return _unreadable(config, result, error, names)
    splices: list[splice.Splice] = []
    news = False
    for i, root in enumerate(roots):
        entry = find_entry(root, config.path, resolver)
        if entry is None:
            continue
        if isinstance(entry, Missing):
            node = root.own("entrypoint") or root
            result.findings.append(
                Finding(
                    codes.NO_TRIAL.code,
                    Severity.REVIEW,
                    node.line,
                    f"the entrypoint names a trial that is not there: {entry.message}; the config stays",
                    node.column,
                    help="correct the entrypoint, or delete the config if it is out of use",
                )
            )
            news = True
            continue
        if not all(trial.configs_follow for trial in entry.trials):
            continue
        conversion = Conversion(source.text, root, entry, target)
        try:
            meanings[i], found = conversion.run()
        except RefusedError as refused:
            return _refused(
                config,
                result,
                refused.rule,
                refused.node.line,
                refused.node.column,
                str(refused),
                refused.advice,
                entry,
            )
        splices += found
        # of a trial that an earlier run converted, only what is left to do is worth a word
        news = news or any(trial.status is TrialStatus.CONVERTED for trial in entry.trials)
        result.findings += conversion.findings
    result.findings.sort(key=lambda finding: (finding.line, finding.column))
    try:
        text = splice.apply(source.text, splices)
        if text == source.text:
            return result if result.findings and news else None
        wrong = same_meaning(text, meanings)
        if wrong is not None:  # the final newline may be part of a text (|) that is now the last thing in the file
            kept = splice.apply(source.text, splices, final_break=True)
            if same_meaning(kept, meanings) is None:
                text, wrong = kept, None
    except ValueError as error:
        wrong = str(error)
    if wrong is not None:
        first = next(iter(roots))
        return _refused(
            config,
            result,
            codes.SHARED,
            first.line,
            first.column,
            f"the edit is not safe ({wrong}): a part of the config is shared through anchors or merge keys",
            "write the shared parts out, or edit this config by hand",
            None,
        )
    if not config.named:
        line = result.findings[0].line if result.findings else 1
        result.findings = [
            Finding(
                codes.NOT_NAMED.code,
                Severity.REVIEW,
                line,
                "this config runs a converted trial and has to follow it, but was not among the files to write",
                help=f"run ds-migrate on the folder {config.path.parent.name}/",
            )
        ]
        return result
    result.after, result.status = source.encode(text), FileStatus.CHANGED
    return result


def _unreadable(config: ConfigFile, result: FileResult, error: Exception, names: frozenset[str]) -> FileResult | None:
    """A finding when the file seems to be the config of a trial; nothing when it merely has such a word in it."""
    from ds_migrate.experiment.tree import UnreadableError

    assert isinstance(error, UnreadableError)
    utf16 = config.data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    text = config.data.decode("utf-16" if utf16 else "utf-8", errors="replace")
    if textually_names(text, names) is None:
        return None
    severity = Severity.ERROR if config.named else Severity.REVIEW
    result.status = FileStatus.ERROR if config.named else FileStatus.UNCHANGED
    result.findings = [
        Finding(
            codes.UNREADABLE.code,
            severity,
            error.line,
            f"cannot be read as an experiment config: {error.reason}",
            error.column,
            help="repair it and run again; it seems to name a converted trial",
        )
    ]
    return result


def _refused(
    config: ConfigFile,
    result: FileResult,
    rule: codes.Rule,
    line: int,
    column: int,
    message: str,
    advice: str | None,
    entry: Entry | None,
) -> FileResult:
    name = entry.trials[0].name if entry is not None and len(entry.trials) == 1 else None
    result.status = FileStatus.BLOCKED if config.named else FileStatus.UNCHANGED
    severity = Severity.BLOCKED if config.named else Severity.REVIEW
    result.findings = [
        Finding(
            rule.code,
            severity,
            line,
            f"{message.rstrip(',')}; the config is left as it was",
            column,
            trial=name,
            help=advice,
        )
    ]
    return result
