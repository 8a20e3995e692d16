"""Results as the user knows their files: under the names that were given, a notebook's with its cells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from ds_migrate.files.discovery import Source
from ds_migrate.files.reading import FileReader, Rewritten
from ds_migrate.findings import FileKind, FileResult, FileStatus

# What a file is when several stages have results for it: the last of these that one of them gives.
_BY_WEIGHT = [
    FileStatus.UNCHANGED,
    FileStatus.CREATED,
    FileStatus.CHANGED,
    FileStatus.BLOCKED,
    FileStatus.ERROR,
]


def merge_results(results: Iterable[FileResult]) -> list[FileResult]:
    """Return one result a path: trials and findings of all stages in their order, and what the last one wrote."""
    merged: dict[Path, FileResult] = {}
    for result in results:
        known = merged.setdefault(result.path, result)
        if known is result:
            continue
        known.trials += result.trials
        known.findings += result.findings
        known.units |= result.units
        known.status = max(known.status, result.status, key=_BY_WEIGHT.index)
        known.before = known.before if result.before is None else result.before
        known.after = known.after if result.after is None else result.after
    return list(merged.values())


def name_results(results: Iterable[FileResult], sources: Sequence[Source], files: FileReader) -> list[FileResult]:
    """Return the results, whose paths are real ones, with the names that the user gave."""
    in_folder: dict[Path, Path] = {}
    for given in sources:
        in_folder.setdefault(given.real.parent, given.path)
    named = []
    for result in results:
        path = result.path
        if path in files.rewritten:
            _to_file(result, files.rewritten[path])
        if path in files.notebooks:
            _to_notebook(result, files)
        elif path in files.to_create:
            result.before = None
            result.status = FileStatus.CREATED if result.status is FileStatus.CHANGED else result.status
        elif result.before is None and result.kind is not FileKind.DS_CONFIG:
            result.before = files.read(path)
        source, beside = files.source(path), in_folder.get(path.parent)
        if source is not None:
            result.path = source.path
        elif beside is not None:  # a file to create is named as its neighbours were
            result.path = beside.with_name(path.name)
        named.append(result)
    return named


def _to_file(result: FileResult, rewritten: Rewritten) -> None:
    """Turn the result of another form of a file into the file's own."""
    result.before = rewritten.before
    result.findings = [replace(finding, line=rewritten.line(finding.line)) for finding in result.findings]
    result.trials = [replace(trial, line=rewritten.line(trial.line)) for trial in result.trials]


def _to_notebook(result: FileResult, files: FileReader) -> None:
    """Turn the result of a notebook's module into the notebook's own."""
    notebook = files.notebooks[result.path]
    result.kind = FileKind.NOTEBOOK
    result.before = files.raw(result.path)
    if result.after is not None:
        result.after = notebook.with_module(result.after)
    for index, finding in enumerate(result.findings):
        cell, line = notebook.locate(finding.line)
        result.findings[index] = replace(finding, cell=cell, line=line)
