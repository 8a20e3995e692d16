"""Findings about files and trials that are not converted: what they are, and why they stay as they are."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from ds_migrate.files.discovery import PYTHON_SUFFIXES, Source
from ds_migrate.files.limits import DEEPEST_MODULE, LARGEST_READ, shown
from ds_migrate.files.reading import FileReader
from ds_migrate.findings import (
    ENCODING_HELP,
    FileKind,
    FileResult,
    FileStatus,
    Finding,
    Severity,
    TrialResult,
    TrialStatus,
)
from ds_migrate.project.conversion_groups import ConversionGroup, ConversionGroups
from ds_migrate.project.library_bases import UNMAINTAINED
from ds_migrate.project.trial_class import TrialClass
from ds_migrate.project.trials import Project
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.parsing import parse

_LISTED = 5  # files that still need determined are named one by one up to here
# A trial by its name, outside of its own methods; a batch that is wrapped already is none.
_BATCH_CALL = re.compile(rb"\b\w*(?i:trial)\.(?:train_batch|evaluate_batch)\((?!\s*(?:iter\(|\w*iter\b|self\b))")
_SUBMITS = re.compile(rb"\bcreate(_experiment)?\(")
_STATUS = {
    "deepspeed": TrialStatus.ALREADY_DEEPSPEED,
    "old-api": TrialStatus.BLOCKED,
    "lightning": TrialStatus.UNSUPPORTED_API,
    "tensorflow": TrialStatus.UNSUPPORTED_API,
    "foreign-base": TrialStatus.BLOCKED,
    "skipped": TrialStatus.SKIPPED,
    "skipped-base": TrialStatus.BLOCKED,
}

_EXCERPT = 80  # characters of a line that does not parse


def unparsable_files(project: Project, members: Iterable[Source], files: FileReader) -> Iterator[FileResult]:
    """Yield the named files that look like trials and cannot be parsed."""
    for source in members:
        path = source.real
        if source.data is None or b"PyTorchTrial" not in source.data or path.suffix not in PYTHON_SUFFIXES:
            continue
        if project.facts(path) is None:
            finding, kind = unreadable(files.read(path) or b""), FileKind.PYTHON
            if path in files.broken_notebooks:
                message, kind = f"{path.name} {files.broken_notebooks[path]}", FileKind.NOTEBOOK
                finding = Finding(Code.UNREADABLE_SOURCE, Severity.ERROR, 1, message)
            yield FileResult(path, kind, FileStatus.ERROR, findings=[finding])


def trials_left_alone(
    project: Project, files: FileReader, problems: Mapping[tuple[Path, str], Finding]
) -> Iterator[FileResult]:
    """Yield the trials in named files that are of another kind than those that are converted.

    ``problems``: why trials of the API before 0.13 cannot be rewritten for today's.
    """
    for (path, name), trial in project.trials.items():
        status = _STATUS.get(trial.kind)
        if status is not None and files.is_writable(path):
            trials = [TrialResult(name, trial.facts.line, status)]
            yield FileResult(path, trials=trials, findings=list(_findings(trial, problems)))


def cluster_clients(
    grouping: ConversionGroups, groups: Iterable[ConversionGroup], files: FileReader
) -> Iterator[FileResult]:
    """Yield the scripts that use a trial through Determined's client: they stay as they are."""
    for trial in (trial for group in groups for trial in group.trials):
        for path in grouping.importers(trial):
            if files.is_writable(path) and grouping.is_cluster_client(path):
                name = trial.facts.name
                message = f"it uses {name} and Determined's client, which ds-train serves; it stays as it is"
                if _SUBMITS.search(files.read(path) or b""):
                    message = f"it hands {name} to a Determined cluster; ds-train CONFIG.yaml runs it without one"
                yield FileResult(path, findings=[Finding(Code.CLUSTER_CLIENT, Severity.REVIEW, 1, message, trial=name)])


def files_still_determined(
    project: Project, members: Sequence[Source], known: Collection[Path]
) -> Iterator[FileResult]:
    """Yield the named files that import Determined and belong to no trial, many as one finding. ``known``: files that
    belong to one, or are reported for another reason."""
    trials = {path for path, _ in project.trials}
    found: list[tuple[Path, int]] = []
    for source in members:
        path = source.real
        if source.data is None or path.suffix not in PYTHON_SUFFIXES or path in trials or path in known:
            continue
        facts = project.facts(path) if b"determined" in source.data and not project.is_vendored(path) else None
        imports = facts.imports if facts is not None else []
        line = next((i.line for i in imports if i.level == 0 and i.module.split(".")[0] == "determined"), 0)
        if line:
            found.append((path, line))
    message = "it imports determined and belongs to no trial; it stays as it is"
    if len(found) > _LISTED:
        message = f"it and {len(found) - 1} other files import determined and belong to no trial; they stay as they are"
        found = found[:1]
    for path, line in found:
        yield FileResult(path, findings=[Finding(Code.STILL_DETERMINED, Severity.REVIEW, line, message)])


def batches_given_elsewhere(
    project: Project, members: Sequence[Source], known: Collection[Path]
) -> Iterator[FileResult]:
    """Yield the named files that give a trial's methods batches and belong to no trial. ``known``: files that do."""
    for source in members:
        call = _BATCH_CALL.search(source.data or b"") if source.real.suffix in PYTHON_SUFFIXES else None
        if call is not None and source.real not in known and project.facts(source.real) is not None:
            line = (source.data or b"").count(b"\n", 0, call.start()) + 1
            message = f"{call[0].decode()}...) gets an iterator once its trial is converted, not a batch"
            advice = "pass iter([batch]) in place of the batch"
            yield FileResult(source.real, findings=[Finding(Code.BATCH, Severity.REVIEW, line, message, help=advice)])


def trials_written_by_cells(files: FileReader) -> Iterator[FileResult]:
    """Yield the trials in notebook cells that write files: the notebook does not run them, so they stay."""
    for path, notebook in files.notebooks.items():
        for line, magic in notebook.written_trials() if files.is_writable(path) else ():
            message = f"a PyTorchTrial is in a {magic} cell, which stays as it is"
            advice = "convert the file that the cell writes, or make it a cell of Python"
            yield FileResult(
                path, findings=[Finding(Code.STILL_DETERMINED, Severity.REVIEW, line, message, help=advice)]
            )


def unreadable(data: bytes, largest: int = LARGEST_READ) -> Finding:
    """Return why and where a file cannot be read, and what to do. ``largest``: bytes up to which files are."""
    line, column, message, advice = 1, 0, "does not parse", None
    if len(data) > largest:
        message = f"has {shown(len(data))}, and modules of up to {shown(largest)} are read"
    else:
        try:
            depth = depth_of(parse(data))
            if depth > DEEPEST_MODULE:
                message = f"is nested {depth:,} levels deep, and modules of up to {DEEPEST_MODULE:,} are read"
        except SyntaxError as error:
            line, column, message = error.lineno or 1, max(error.offset or 0, 0), f"does not parse: {error.msg}"
            if "utf-8" in error.msg.lower():  # "'utf-8' codec", and "Non-UTF-8 code" since Python 3.14
                line, column = 1 + data[: _first_undecodable(data)].count(b"\n"), 0
                advice = ENCODING_HELP
            elif error.text and error.text.strip():
                advice = f"see `{error.text.strip()[:_EXCERPT]}`"
        except (ValueError, RecursionError, MemoryError) as error:
            message = f"does not parse: {error}"
    return Finding(Code.UNREADABLE_SOURCE, Severity.ERROR, line, message, column, help=advice)


def depth_of(tree: ast.AST) -> int:
    """Return how many nodes of a syntax tree are within each other at most."""
    depth, level = 0, [tree]
    while level:
        depth += 1
        level = [child for node in level for child in ast.iter_child_nodes(node)]
    return depth


def _first_undecodable(data: bytes) -> int:
    """Return the position of the first byte that is not UTF-8; the end where all are."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start
    return len(data)


def _findings(trial: TrialClass, problems: Mapping[tuple[Path, str], Finding]) -> Iterator[Finding]:
    name, line = trial.facts.name, trial.facts.line
    if trial.kind == "skipped-base":
        yield Finding(
            Code.MOVES_WITH_BLOCKED, Severity.BLOCKED, line, f"{name} is built on a trial that is skipped", trial=name,
            help="skip it too, or take the skip comment off the class that it is built on",
        )  # fmt: skip
    elif trial.kind == "old-api":
        yield problems[trial.key]
    elif trial.kind == "lightning":
        yield Finding(
            Code.LIGHTNING_ADAPTER, Severity.REVIEW, line, f"{name} is a LightningAdapter", trial=name,
            help='drop the adapter: lightning.Trainer(strategy="deepspeed_stage_2") drives DeepSpeed itself',
        )  # fmt: skip
    elif trial.kind == "tensorflow":
        base = next((base for base in trial.facts.bases if base), "").rpartition(".")[2]
        yield Finding(
            Code.TENSORFLOW_TRIAL, Severity.REVIEW, line, f"{name} is built on {base}, which trains with TensorFlow",
            trial=name, help="train it with TensorFlow itself, or write it in PyTorch first: DeepSpeed is for PyTorch",
        )  # fmt: skip
    elif trial.kind == "foreign-base":
        bases = ", ".join(base for base in trial.facts.bases if base)
        if any(base.startswith(UNMAINTAINED) for base in trial.facts.bases):
            yield Finding(
                Code.FOREIGN_BASE, Severity.BLOCKED, line,
                f"{name} is built on {bases}, and mmdetection is no longer maintained", trial=name,
                help="mmdetection's last release is from January 2024: port the trial to another detection library",
            )  # fmt: skip
        elif "PyTorchTrial" in {base.rpartition(".")[2] for base in trial.facts.bases}:
            yield Finding(
                Code.FOREIGN_BASE, Severity.BLOCKED, line, f"{name} does not take PyTorchTrial from determined itself",
                trial=name,
                help="write from determined.pytorch import PyTorchTrial in its file, and so for all its names",
            )  # fmt: skip
        else:
            yield Finding(
                Code.FOREIGN_BASE, Severity.BLOCKED, line, f"{name} is built on {bases}, which is not in this project",
                trial=name,
                help=_way_to_follow(trial.facts.bases),
            )  # fmt: skip


def _way_to_follow(bases: Iterable[str]) -> str:
    """Return how a trial converts whose base class is elsewhere."""
    package = next((base.partition(".")[0] for base in bases if "." in base.strip(".") and base[:1] != "."), None)
    if package is None:
        return "convert the base class where it is, or copy it into the project, and run again on both"
    return f"convert a copy of it beside the trial: --follow {package}; or copy it into the project by hand"
