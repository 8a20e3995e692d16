"""The two sides as folders: a working copy of the original's code, and one of the converted code.

Nothing of the user's is written. Code and configs are copied; everything else (data, pretrained weights) is linked.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ds_migrate.files.discovery import discover
from ds_migrate.findings import Finding, Report, Severity, TrialStatus
from ds_migrate.options import Options
from ds_migrate.pipeline import migrate
from trial_runtime.train.config.errors import ConfigError

_CODE = frozenset({".py", ".pyi", ".yaml", ".yml", ".json", ".ipynb", ".toml", ".cfg", ".ini"})
_SKIPPED = frozenset({".git", "__pycache__", ".venv", "venv", "node_modules", ".mypy_cache", ".pytest_cache"})
_LARGE = 8 << 20
_MANY = 2000
"""A folder with more entries is data, whatever their names are."""


@dataclass
class FileChange:
    """A file that differs between the two sides; None: it is not there."""

    name: str
    before: bytes | None
    after: bytes | None


@dataclass
class Sides:
    """The two folders, and the conversion between them.

    Attributes:
        original, converted: working copies of the context directory.
        how: where they come from, in words. waiting: whether the user's own files are not converted yet.
        findings: those of the conversion, each with its file's name relative to the context directory.
        changes: the files that differ.
        trials: names of all trials. left: those that are not converted between the two sides, each with the reason.
    """

    original: Path
    converted: Path
    how: str
    waiting: bool = False
    findings: list[tuple[str, Finding]] = field(default_factory=list)
    changes: list[FileChange] = field(default_factory=list)
    trials: frozenset[str] = frozenset()
    left: dict[str, str] = field(default_factory=dict)


def open_sides(context: Path, work: Path, against: str | None, reference: str | None, options: Options) -> Sides:
    """Make the two working copies below `work`.

    Args:
        context: the folder with the trial's code.
        against: "converted": convert a copy; "working-tree": the files as they are; None: the former when they hold a
            trial that is not converted.
        reference: the original, where it is not the files as they are: a folder, or a git revision (HEAD).
        options: of the conversion.

    Raises:
        ConfigError: there is no trial, it does not convert, or there is no original to compare with.
    """
    changed = working_copy(context, work / "converted")
    report = migrate(discover([changed]), options)  # of the copy: the project around the context is not trained
    waiting, converted = _trials(report)
    if not waiting and not converted and reference is None:
        raise ConfigError(f"{context}: holds neither a PyTorchTrial nor a DeepSpeedTrial")
    if against is None:
        against = "converted" if waiting and reference is None else "working-tree"
    if against == "converted":
        if not waiting:
            raise ConfigError(
                f"{context}: holds no trial that is not converted; leave --against out to compare with git HEAD"
            )
        original = working_copy(context, work / "original")
        sides = Sides(original, changed, f"{context}, and a copy that ds-migrate converted", waiting=True)
        _convert(sides, report)
    else:
        original = reference_copy(context, reference, work / "original")
        named = reference or "HEAD"
        sides = Sides(original, changed, f"{named}, and {context} as it is")
        still = [trial.name for _, trial in report.trials() if trial.status is not TrialStatus.ALREADY_DEEPSPEED]
        sides.left = {name: f"{context}: {name} is not converted there" for name in still}
        sides.findings = findings_in(migrate(discover([original]), options), original)
    sides.trials = frozenset(trial.name for _, trial in report.trials())
    sides.changes = list(changes_between(sides.original, sides.converted))
    return sides


def working_copy(source: Path, target: Path, above: tuple[Path, ...] = ()) -> Path:
    """Make a copy of the code below `source`, with links to everything else, and to folders that lie `above` it."""
    target.mkdir(parents=True)
    above = (*above, source.resolve())
    with os.scandir(source) as entries:
        listed = sorted(entries, key=lambda entry: entry.name)
    for entry in listed:
        if entry.name in _SKIPPED:
            continue
        place, path = target / entry.name, Path(entry.path).resolve()
        if entry.is_dir() and not any(folder.is_relative_to(path) for folder in above) and _holds_code(path):
            working_copy(path, place, above)
        elif entry.is_file() and _is_code(path):
            shutil.copyfile(path, place)
        else:
            place.symlink_to(path)
    return target


def mentions_cuda(folder: Path) -> bool:
    """Return whether a module of a working copy names CUDA."""
    return any(b"cuda" in path.read_bytes() for path in folder.rglob("*.py") if path.is_file())


def _is_code(path: Path) -> bool:
    return path.suffix in _CODE and path.stat().st_size <= _LARGE


def _holds_code(folder: Path) -> bool:
    for _, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in _SKIPPED]
        if len(names) > _MANY:
            folders[:] = []
        elif any(Path(name).suffix in _CODE for name in names):
            return True
    return False


def _trials(report: Report) -> tuple[bool, bool]:
    """Return whether there is a trial to convert, and whether there is one on DeepSpeed already."""
    kinds = {trial.status for _, trial in report.trials()}
    return bool(kinds - {TrialStatus.ALREADY_DEEPSPEED}), TrialStatus.ALREADY_DEEPSPEED in kinds


def _convert(sides: Sides, report: Report) -> None:
    sides.findings = findings_in(report, sides.converted)
    if not any(report.trials(TrialStatus.CONVERTED)):
        why = blocking_reasons(sides.findings)
        raise ConfigError("ds-migrate cannot convert it:\n    " + "\n    ".join(why[:10]))
    sides.left = dict(_left(report, sides.findings))
    for file in report.files:
        if file.to_write and file.after is not None:
            file.path.parent.mkdir(parents=True, exist_ok=True)
            file.path.write_bytes(file.after)


def blocking_reasons(findings: Sequence[tuple[str, Finding]]) -> list[str]:
    """Return the findings that block a conversion, one a line, each with its way out."""
    return [
        f"{name}:{finding.line}: {finding.code} {finding.message}"
        + (f"\n        {finding.help}" if finding.help else "")
        for name, finding in findings
        if finding.severity in (Severity.BLOCKED, Severity.ERROR)
    ]


def _left(report: Report, findings: Sequence[tuple[str, Finding]]) -> Iterator[tuple[str, str]]:
    """Yield the trials that a conversion leaves as they are, with the reason."""
    converted = {trial.name for _, trial in report.trials(TrialStatus.CONVERTED)}
    for _, trial in report.trials():
        if trial.name in converted:
            continue
        if trial.status is TrialStatus.ALREADY_DEEPSPEED:
            yield trial.name, f"{trial.name} is converted already: compare it with git HEAD by --against working-tree"
        else:
            why = blocking_reasons([(name, each) for name, each in findings if each.trial in (trial.name, None)])
            yield trial.name, "\n    ".join([f"ds-migrate does not convert {trial.name}:", *why[:10]])


def findings_in(report: Report, folder: Path) -> list[tuple[str, Finding]]:
    """Return the findings with the names of their files. Those that a comment accepts explain differences as well."""
    root = folder.resolve()
    found = []
    for named, finding in [*((file.path, finding) for file, finding in report.findings()), *report.accepted]:
        path = named.resolve()
        found.append((str(path.relative_to(root)) if path.is_relative_to(root) else path.name, finding))
    return found


def reference_copy(context: Path, reference: str | None, target: Path) -> Path:
    """Make a working copy of the original: a folder, or git's code with the data that lies in `context`."""
    if reference is not None and Path(reference).is_dir():
        return working_copy(Path(reference), target)
    revision = reference or "HEAD"
    archive = subprocess.run(
        ["git", "-C", str(context), "archive", "--format=tar", revision, "."], capture_output=True, check=False
    )
    if archive.returncode:
        errors = archive.stderr.decode(errors="replace").strip().splitlines() or ["git failed"]
        raise ConfigError(
            f"{context}: git has no {revision} of it to compare with ({errors[-1]}); name the original: "
            f"--original FOLDER or --original REVISION"
        )
    working_copy(context, target)
    for path in target.rglob("*"):
        if path.suffix in _CODE and path.is_file() and not path.is_symlink():
            path.unlink()
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        for member in files.getmembers():
            place = target / member.name
            if member.isfile() and (place.suffix in _CODE or not place.exists()):
                place.parent.mkdir(parents=True, exist_ok=True)
                content = files.extractfile(member)
                place.unlink(missing_ok=True)
                place.write_bytes(content.read() if content is not None else b"")
    return target


def changes_between(original: Path, converted: Path) -> Iterator[FileChange]:
    names = {
        str(path.relative_to(side))
        for side in (original, converted)
        for path in side.rglob("*")
        if path.suffix in _CODE and path.is_file() and not path.is_symlink()
    }
    for name in sorted(names):
        before, after = (
            (side / name).read_bytes() if (side / name).is_file() else None for side in (original, converted)
        )
        if before != after:
            yield FileChange(name, before, after)
