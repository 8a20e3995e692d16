"""What must hold for any project, whatever is in it."""

from __future__ import annotations

import ast
import io
import json
import os
import re
import shutil
import subprocess
import time
import tokenize
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from ds_migrate.experiment.yaml_nodes import read_yaml
from ds_migrate.files import journal, writer
from ds_migrate.files.discovery import discover
from ds_migrate.findings import FileKind, FileResult, Report, Severity, TrialStatus
from ds_migrate.pipeline import migrate
from ds_migrate.report import plain_text
from ds_migrate.report.formats.github import to_github
from ds_migrate.report.formats.html import to_html
from ds_migrate.report.formats.json import to_json
from ds_migrate.report.formats.sarif import to_sarif
from ds_migrate.report.patch import patch
from ds_migrate.report.summary import Command, Mode
from ds_migrate.rules.codes import Code

from fuzz.cases import Case

# Only a PyTorchTrialContext has these.
GONE = frozenset({"wrap_model", "wrap_optimizer", "step_optimizer", "wrap_scaler", "configure_apex_amp"})
# What rank 0 alone writes beside a converted loop.
WRITES = re.compile(rb"""\bopen\(|["'][rwax]b?t?\+?b?t?["']|\bmkdir|\bmakedirs""")
TEXT = re.compile(rb"text\w* = (.+)")
NARROWED = re.compile(rb"(if .+) and is_main_rank\(\):")
OPTIMIZER = re.compile(r"(?i)(\w+\.)?\w*opt(im(izer)?)?[dg]?")
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
SECONDS, SECONDS_PER_BYTE = 4.0, 60e-6  # CPU time of one run


def violations(case: Case, folder: Path) -> list[str]:
    """Return what a case breaks: run the whole of a migration on it in the folder, which is emptied before."""
    shutil.rmtree(folder, ignore_errors=True)
    for name, data in case.files.items():
        path = Path(os.fsdecode(os.fsencode(folder) + b"/" + name))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return list(_violations(case, Path(os.path.realpath(folder))))
    except Exception:
        return [f"crash: {traceback.format_exc()}"]


def _violations(case: Case, folder: Path) -> Iterator[str]:
    before = tree(folder)
    began = time.process_time()
    report = migrate(discover([folder]), case.options)
    spent = time.process_time() - began
    if spent > SECONDS + SECONDS_PER_BYTE * sum(map(len, before.values())):
        yield f"time: {spent:.1f} s of CPU for {sum(map(len, before.values()))} bytes"
    for file, finding in report.findings():
        if finding.code == Code.FAILED_CHECK:
            yield f"DSM003: {finding.message}"
        yield from _location(file, finding.line, finding.column, finding.cell)
    yield from _formats(report)
    for file in report.files:
        if file.to_write:
            yield from _output(file, case)
    yield from _patch(report, folder, before)
    yield from _written(case, report, folder, before)


def tree(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def _location(file: FileResult, line: int, column: int, cell: int | None) -> Iterator[str]:
    text = file.after if file.kind is FileKind.DS_CONFIG and file.after is not None else file.before
    if cell is not None or text is None:
        return
    lines = re.split(b"\r\n|\r|\n", text)
    if not 0 <= line <= len(lines):
        yield f"location: line {line} of {len(lines)}"
    elif line and column > len(lines[line - 1]) + 1 and b"\x00" not in text and text.isascii():
        yield f"location: column {column} of {len(lines[line - 1])}"


def _formats(report: Report) -> Iterator[str]:
    """Render the report in every format; what is shown holds nothing that a terminal obeys."""
    for mode in Mode:
        command = Command(["."])
        shown = [
            *plain_text.finding_lines(report),
            *plain_text.closing_lines(report, mode, command),
            *to_github(report, mode),
        ]
        shown += [*plain_text.waiting_lines(report), *plain_text.written_lines(report), to_sarif(report, mode)]
        shown += [to_html(report, mode, command)] if mode is Mode.PREVIEW else []
        for line in shown:
            if not line.startswith(("<", "{")) and CONTROL.search(line):
                yield f"control character: {line!r}"
    json.loads(to_json(report))


def _output(file: FileResult, case: Case) -> Iterator[str]:
    after = file.after or b""
    if file.kind is FileKind.DS_CONFIG:
        json.loads(after.decode("utf-8-sig"))
    elif file.kind is FileKind.EXPERIMENT:
        read_yaml(after)
    else:
        code = compile(after, "converted", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)
        if lost := _comments(file.before or b"") - _comments(after):
            yield f"comments lost: {sorted(lost)}"
        left = {node.attr for node in ast.walk(code) if isinstance(node, ast.Attribute)} & GONE
        is_converted = any(trial.status is TrialStatus.CONVERTED for trial in file.trials)
        if left and is_converted:
            yield f"left in the output: {sorted(left)}"
        if case.options.plain and is_converted and (half := _left_of_loops(code)):
            yield f"half a conversion: {half}"
        if case.foreign:
            lines = iter(after.splitlines())
            missing = [
                line
                for line in case.foreign.splitlines()
                if not (case.options.plain and WRITES.search(line))
                and not any(_is_kept(line, other, case.options.plain) for other in lines)
            ]
            if missing:
                yield f"foreign line changed: {missing[0]!r}"


def _left_of_loops(code: ast.Module) -> list[str]:
    """Return what no converted loop has any more: backward() of a loss, step() of an optimizer."""
    found = []
    for call in ast.walk(code):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or call.args or call.keywords:
            continue
        owner = ast.unparse(call.func.value)
        is_step = call.func.attr == "step" and OPTIMIZER.fullmatch(owner) is not None
        if call.func.attr == "backward" or is_step:
            found.append(f"{owner}.{call.func.attr}()")
    return found


def _is_kept(line: bytes, other: bytes, may_indent: bool) -> bool:
    """Return whether a line is the same in the output; an import may have got a name, a print() a condition.

    What is printed may be made in a line before the condition, as a text: all ranks have to call what makes it.
    """
    text = TEXT.fullmatch(other.strip())
    narrowed = NARROWED.fullmatch(other.strip())
    return (
        line == other
        or (may_indent and line.strip() == other.strip())
        or (
            may_indent
            and text is not None
            and line.strip().startswith((b"print(", b"pprint.pprint("))
            and text[1] in line
        )
        or (may_indent and narrowed is not None and line.strip() in (narrowed[1] + b":", _bare(narrowed[1]) + b":"))
        or (line.startswith(b"from ") and other.partition(b" import ")[0] == line.partition(b" import ")[0])
    )


def _bare(condition: bytes) -> bytes:
    """Return a condition without the parentheses around it."""
    return condition.replace(b"if (", b"if ", 1).removesuffix(b")")


def _comments(data: bytes) -> Counter[str]:
    try:
        return Counter(t.string for t in tokenize.tokenize(io.BytesIO(data).readline) if t.type == tokenize.COMMENT)
    except (SyntaxError, tokenize.TokenError):
        return Counter()


def _patch(report: Report, folder: Path, before: dict[str, bytes]) -> Iterator[str]:
    """Apply the patch with git, and compare; then restore the files."""
    text = patch(report, folder)
    if not text:
        return
    done = subprocess.run(["git", "apply", "-"], input=text, cwd=folder, capture_output=True, check=False, timeout=60)
    if done.returncode:
        yield f"patch: {done.stderr.decode(errors='replace')}"
    for file in report.files:
        if file.to_write and done.returncode == 0 and Path(os.path.realpath(file.path)).read_bytes() != file.after:
            yield f"patch: {file.path} differs"
    for name in tree(folder).keys() - before.keys():
        (folder / name).unlink()
    for name, data in before.items():
        (folder / name).write_bytes(data)


def _written(case: Case, report: Report, folder: Path, before: dict[str, bytes]) -> Iterator[str]:
    """Write, run again, undo."""
    writer.apply(report, folder)
    if any(finding.code == Code.NOT_WRITTEN for _, finding in report.findings()):
        yield f"not written: {[finding.message for _, finding in report.findings(Severity.ERROR)]}"
    written = {name for name, data in tree(folder).items() if before.get(name) != data}
    second = migrate(discover([folder]), case.options)
    again = [str(file.path) for file in second.files if file.to_write]
    if again:
        yield f"second run: it changes {again}"
    entry = journal.last_entry(folder)
    if entry is not None:
        writer.undo(entry)
    elif written:
        yield "undo: nothing is remembered"
    if tree(folder) != before:
        yield "undo: the files are not what they were"
