"""The two sides of a script as folders; every run gets a copy of its side, since a script writes beside itself."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from ds_migrate.files.discovery import discover
from ds_migrate.findings import Severity
from ds_migrate.options import Options
from ds_migrate.pipeline import migrate
from trial_runtime.train.config.errors import ConfigError

from ds_verify.plain.file_isolation import open_folders
from ds_verify.working_copies import Sides, blocking_reasons, changes_between, findings_in, reference_copy, working_copy


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
    is_converted = b"deepspeed" in (context / script).read_bytes() or reference is not None
    if against is None:
        against = "working-tree" if is_converted else "converted"
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
    if not written:
        blocked = blocking_reasons(sides.findings) or [
            f"{name}:{finding.line}: {finding.code} {finding.message}"
            for name, finding in sides.findings
            if finding.severity is Severity.REVIEW
        ]
        raise ConfigError("\n    ".join([f"ds-migrate --plain converts nothing for {script}:", *blocked[:10]]))


def copy_for_run(side: Path, target: Path) -> Path:
    """Copy a side for one process, or for ranks that share their files; links stay links."""
    shutil.copytree(side, target, symlinks=True)
    return target
