"""The experiment configs of a project: read and resolved once, edited once their trials are converted.

An edit is compared with its intention before anyone sees it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote

from ds_migrate.experiment import yaml_splices
from ds_migrate.experiment.config_edit import ConfigEdit
from ds_migrate.experiment.entry import Entry, find_entry
from ds_migrate.experiment.model import ScriptRun, TrialFacts
from ds_migrate.experiment.trial_lookup import Missing, Resolver, Unfollowed
from ds_migrate.experiment.yaml_edits import RefusedError, same_meaning
from ds_migrate.experiment.yaml_nodes import Node, UnreadableError, YamlSource, data, parse, read_yaml
from ds_migrate.files.prefilter import entrypoint_texts, line_of_entrypoint, may_name, search_terms
from ds_migrate.findings import FileKind, FileResult, FileStatus, Finding, Severity, TrialStatus
from ds_migrate.project.loading import ConfigFile
from ds_migrate.rules.codes import Code

_ACCUMULATES = b"aggregation_frequency"
_FLOW = re.compile(r"[\[\]{},]")


@dataclass(frozen=True)
class ParsedConfig:
    """A config that may concern a trial, parsed. ``runs``: what each of its documents runs, if that is a trial of the
    project. ``source`` is None where it cannot be read: ``error`` names the reason then, and ``names`` are the
    trials that its entrypoint seems to name."""

    file: ConfigFile
    source: YamlSource | None
    error: UnreadableError | None
    runs: tuple[Entry | Missing | Unfollowed | None, ...] = ()
    names: tuple[TrialFacts, ...] = ()

    @property
    def binds(self) -> bool:
        """Return whether the trials that an unreadable config names stay as they are: it would be edited with them, or
        may accumulate, which the source has to follow."""
        return self.file.named or _ACCUMULATES in self.file.data

    @property
    def reason_and_advice(self) -> tuple[str, str]:
        """Return why it cannot be read, with the place, and what to do."""
        assert self.error is not None
        place = f"{self.error.line}:{self.error.column}" if self.error.column else f"{self.error.line}"
        left_out = (
            "" if _ACCUMULATES in self.file.data else f", or leave it out: --exclude {quote(self.file.path.name)}"
        )
        return f"line {place}: {self.error.reason}", f"fix it and run again{left_out}"

    @property
    def entries(self) -> Iterator[tuple[int, Entry]]:
        """The documents that run trials, by number."""
        return ((i, run) for i, run in enumerate(self.runs) if isinstance(run, Entry))


def read_configs(
    configs: Sequence[ConfigFile],
    trials: Iterable[TrialFacts],
    scripts: Mapping[Path, Sequence[ScriptRun]],
    root: Path | None = None,
) -> list[ParsedConfig]:
    """Return those configs that may concern one of the trials, and which of the trials they run.

    Of ``trials`` only ``name`` and ``path`` count, besides ``aggregation_from_config``: nothing is converted yet.
    ``scripts``: absolute path of a script -> the trials that it runs, each as (source, class name) or, where the name
    is enough, as the class name alone. ``root``: the project's root, where the search for a context directory ends.
    """
    trials = [replace(trial, status=TrialStatus.CONVERTED) for trial in trials]
    terms = terms_of(trials, scripts)
    resolver = Resolver(trials, scripts, root)
    return [_parsed(config, resolver) for config in configs if terms and may_name(config.data, terms)]


def plan(
    configs: Sequence[ParsedConfig],
    trials: Sequence[TrialFacts],
    scripts: Mapping[Path, Sequence[ScriptRun]],
    target: str = "runtime",
) -> list[FileResult]:
    """Return the results for the configs of converted trials; a file without news has none.

    A config is edited when it is ``named`` and every trial it runs was converted. No byte changes in one that runs a
    blocked trial, cannot be parsed, names a class that is not there, or whose edit would touch what an anchor shares.
    """
    terms = terms_of(trials, scripts)
    known = {(trial.path, trial.name): trial for trial in trials}
    concerned = [c for c in configs if c.names or (terms and may_name(c.file.data, terms))]
    results = [_plan_config(_with_trials(config, known), terms, target) for config in concerned]
    return [result for result in results if result is not None]


def terms_of(trials: Iterable[TrialFacts], scripts: Mapping[Path, Sequence[ScriptRun]]) -> frozenset[str]:
    """Return the search terms of configs that concern the trials: names of classes, modules and scripts."""
    followed = [trial for trial in trials if trial.configs_follow]
    names = {trial.name for trial in followed}
    modules = {trial.path.parent.name if trial.path.name == "__init__.py" else trial.path.stem for trial in followed}
    started = {
        script.stem
        for script, runs in scripts.items()
        if any((run if isinstance(run, str) else run[1]) in names for run in runs)
    }
    return search_terms(names | modules | started)


def _parsed(config: ConfigFile, resolver: Resolver) -> ParsedConfig:
    try:
        source = read_yaml(config.data)
    except UnreadableError as error:
        return ParsedConfig(config, None, error, names=tuple(_named_anyway(config, resolver)))
    return ParsedConfig(config, source, None, tuple(find_entry(root, config.path, resolver) for root in source.roots))


def _named_anyway(config: ConfigFile, resolver: Resolver) -> Iterator[TrialFacts]:
    """Yield the trials that the entrypoint of a file names that cannot be read as a whole."""
    for _, text in entrypoint_texts(config.data):
        found = resolver.argument(_FLOW.sub(" ", text.removeprefix("entrypoint").lstrip("'\" \t:")), config.path)
        try:
            roots = parse(text) if found is None else []
        except UnreadableError:
            roots = []
        for run in (found, *(find_entry(root, config.path, resolver) for root in roots)):
            if isinstance(run, (Entry, Unfollowed)):
                yield from run.trials


def _with_trials(config: ParsedConfig, known: Mapping[tuple[Path, str], TrialFacts]) -> ParsedConfig:
    """Return the config with what became of its trials."""

    def final(run: Entry | Missing | Unfollowed | None) -> Entry | Missing | Unfollowed | None:
        if run is None:
            return None
        return replace(run, trials=tuple(known[trial.path, trial.name] for trial in run.trials))

    names = tuple(known[trial.path, trial.name] for trial in config.names)
    return replace(config, runs=tuple(map(final, config.runs)), names=names)


def _plan_config(config: ParsedConfig, terms: frozenset[str], target: str) -> FileResult | None:
    file, source = config.file, config.source
    result = FileResult(file.path, FileKind.EXPERIMENT, before=file.data)
    if source is None:
        assert config.error is not None
        return result if _unreadable(config, result, config.error, terms) else None
    for root, run in zip(source.roots, config.runs, strict=True):
        node = root.own("entrypoint") or root
        if isinstance(run, Missing) and (
            not run.trials or (file.named and any(trial.configs_follow for trial in run.trials))
        ):
            _note_missing(result, node, run.message)
        elif isinstance(run, Unfollowed) and any(trial.status is TrialStatus.CONVERTED for trial in run.trials):
            _note_unfollowed(result, node, run)
    entries = [(i, entry) for i, entry in config.entries if all(trial.configs_follow for trial in entry.trials)]
    missing = list(result.findings)
    attempt = _attempt(source, entries, target, careful=False)
    if attempt.wrong is not None or attempt.refused is not None:
        attempt = _attempt(source, entries, target, careful=True)
    if attempt.refused is not None:
        return _refused(file, result, attempt.refused)
    result.findings = sorted([*missing, *attempt.findings], key=lambda finding: (finding.line, finding.column))
    if attempt.text == source.text:
        # of a trial that an earlier run converted, only what is left to do is news
        news = missing or any(trial.status is TrialStatus.CONVERTED for _, entry in entries for trial in entry.trials)
        return result if result.findings and news else None
    if not file.named:
        line = result.findings[0].line if result.findings else 1
        message = "this config runs a converted trial and has to follow it, but was not among the files to write"
        advice = f"run ds-migrate on the folder {file.path.parent.name}/"
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


def _attempt(source: YamlSource, entries: Sequence[tuple[int, Entry]], target: str, careful: bool) -> _Attempt:
    meanings = [data(root) for root in source.roots]
    splices: list[yaml_splices.Splice] = []
    findings: list[Finding] = []
    for i, entry in entries:
        edit = ConfigEdit(source.text, source.roots[i], entry, target, careful)
        try:
            meanings[i], found = edit.run()
        except RefusedError as refused:
            return _Attempt(source.text, [], refused=refused)
        splices += found
        findings += edit.findings
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


def _unreadable(config: ParsedConfig, result: FileResult, error: UnreadableError, terms: Iterable[str]) -> bool:
    """Note why a file cannot be read, if it is the config of a trial, or was named and seems to be one."""
    is_named = config.file.named
    if not config.names and not (is_named and line_of_entrypoint(config.file.data, terms) is not None):
        return False
    severity = Severity.ERROR if is_named else Severity.REVIEW
    result.status = FileStatus.ERROR if is_named else FileStatus.UNCHANGED
    message = f"cannot be read as an experiment config: {error.reason}"
    advice = "fix it and run again; the file appears to configure a trial that is being converted"
    if any(trial.status is TrialStatus.BLOCKED for trial in config.names):
        advice = config.reason_and_advice[1]
    result.findings = [Finding(Code.CONFIG_UNREADABLE, severity, error.line, message, error.column, help=advice)]
    return True


def _refused(config: ConfigFile, result: FileResult, refused: RefusedError) -> FileResult:
    result.status = FileStatus.BLOCKED if config.named else FileStatus.UNCHANGED
    severity = Severity.BLOCKED if config.named else Severity.REVIEW
    message = f"{str(refused).rstrip(',')}; the config is left as it was"
    place = refused.node.line, message, refused.node.column
    result.findings = [Finding(refused.code, severity, *place, help=refused.advice)]
    return result
