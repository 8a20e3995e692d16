"""The two sides of a script as folders; every run gets a copy of its side, since a script writes beside itself."""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ds_migrate.files.discovery import discover
from ds_migrate.findings import Finding, Severity
from ds_migrate.options import Options
from ds_migrate.pipeline import migrate
from trial_runtime.train.config.errors import ConfigError

from ds_verify.plain.file_isolation import open_folders
from ds_verify.working_copies import Sides, blocking_reasons, changes_between, findings_in, reference_copy, working_copy

_CONVERTED = re.compile(rb"^\s*(import|from)\s+(deepspeed|trial_runtime)\b", re.MULTILINE)


def open_sides(
    context: Path, script: Path, work: Path, against: str | None, reference: str | None, options: Options
) -> Sides:
    """Make the two working copies below `work`.

    Args:
        context: the folder that the script is started in.
        script: relative to `context`.
        work: for the copies.
        against: "converted": convert a copy; "working-tree": the files as they are; None: the former where the script
            is not converted yet.
        reference: the original, where it is not the files as they are: a folder, or a git revision (HEAD).
        options: of the conversion.

    Raises:
        ConfigError: the script does not convert, or there is no original to compare with.
    """
    if against is None:
        is_converted = _CONVERTED.search((context / script).read_bytes()) is not None
        against = "working-tree" if is_converted or reference is not None else "converted"
    if against == "converted":
        original, changed = working_copy(context, work / "original"), working_copy(context, work / "converted")
        sides = Sides(original, changed, f"{context}, and a copy that ds-migrate --plain converted", waiting=True)
        _convert(sides, script, replace(options, plain=True))
    else:
        original = reference_copy(context, reference, work / "original")
        sides = Sides(
            original, working_copy(context, work / "converted"), f"{reference or 'HEAD'}, and {context} as it is"
        )
    for side in (sides.original, sides.converted):
        open_folders(side)
        if not (side / script).is_file():
            raise ConfigError(f"{script}: the {'original' if side is sides.original else 'converted'} side lacks it")
    sides.changes = list(changes_between(sides.original, sides.converted))
    return sides


def _convert(sides: Sides, script: Path, options: Options) -> None:
    report = migrate(discover([sides.converted]), options)
    sides.findings = findings_in(report, sides.converted)
    written = [file for file in report.files if file.to_write and file.after is not None]
    for file in written:
        file.path.parent.mkdir(parents=True, exist_ok=True)
        file.path.write_bytes(file.after or b"")
    is_written = any(file.path.samefile(sides.converted / script) for file in written)
    own = [(name, finding) for name, finding in sides.findings if name == str(script)]
    if not written or (blocking_reasons(own) and not is_written):
        raise ConfigError("\n    ".join(_refusal(sides.converted, script, own, sides.findings)))


def _refusal(
    folder: Path, script: Path, own: Sequence[tuple[str, Finding]], findings: Sequence[tuple[str, Finding]]
) -> Iterator[str]:
    """Yield why a script is not converted, line by line: from its own findings, else from those of other files."""
    try:
        ast.parse((folder / script).read_bytes())
    except (SyntaxError, ValueError) as error:
        yield f"{script}: cannot be parsed: {error}"
        return
    reasons = blocking_reasons(own)
    if reasons:
        yield f"ds-migrate --plain does not convert {script}:"
    else:
        yield f"ds-migrate --plain finds no training loop in {script}" + "; of other files it reports:" * bool(findings)
        reasons = blocking_reasons(findings) or [
            f"{name}:{finding.line}: {finding.code} {finding.message}"
            for name, finding in findings
            if finding.severity is Severity.REVIEW
        ]
    yield from reasons[:10]


def copy_for_run(side: Path, target: Path) -> Path:
    """Copy a side for one process, or for ranks that share their files; links stay links."""
    shutil.copytree(side, target, symlinks=True)
    return target
