"""The results of converting a part of a program, file by file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from ds_migrate.findings import FileKind, FileResult, FileStatus, Finding, Severity, TrialResult, TrialStatus
from ds_migrate.plain.decisions.plan import Note, PlannedEngine
from ds_migrate.plain.edits.engine_config import divide
from ds_migrate.plain.parts.part import Part
from ds_migrate.plain.recognition.facts import Refusal, Step
from ds_migrate.rules.codes import Code


def part_results(part: Part, outputs: Mapping[Path, bytes]) -> Iterator[FileResult]:
    """Yield the results of a part. ``outputs`` are the files that change, with their new text."""
    blocked = bool(part.refusals) and not part.is_skipped
    status = TrialStatus.SKIPPED if part.is_skipped else TrialStatus.BLOCKED if blocked else TrialStatus.CONVERTED
    files = part.files if part.stays else [*part.files, *(file for file in part.changed if file not in part.files)]
    name = ":".join(str(file.path) for file in files)
    own = {file: [r for r in part.refusals if r.file is file] for file in files}
    own |= {r.file: [x for x in part.refusals if x.file is r.file] for r in part.refusals}
    for file, refusals in own.items():
        result = FileResult(file.path, units=frozenset({name}))
        loops = {loop_name(step): step for step in reversed(part.steps) if step.file is file}
        result.trials = [
            TrialResult(loop, step.file.reported_position(step.node)[0], status, is_loop=True)
            for loop, step in loops.items()
        ]
        if not part.steps and refusals:
            result.trials = [
                TrialResult(f"the loop of {file.path.stem}", file.reported_position(refusals[0].node)[0], status, True)
            ]
        first = next(iter(loops), None)
        if blocked:
            failures = (Code.FAILED_CHECK, Code.UNREADABLE_SOURCE)
            severities = [Severity.ERROR if r.code in failures else Severity.BLOCKED for r in refusals]
            result.findings = _once(_finding(r, s, first) for r, s in zip(refusals, severities, strict=True))
            result.status = FileStatus.BLOCKED
        else:
            notes = [(s, n) for s, n in part.notes if n.file is file]
            found = [_finding(n, s, first) for s, n in notes]
            result.findings = _once(sorted(found, key=lambda f: (f.line, f.column, f.code)))
            result.after = outputs.get(file.path) if file in part.changed else None
            result.status = FileStatus.CHANGED if result.after is not None else FileStatus.UNCHANGED
        yield result
    reviews = [] if part.stays else [(s, n) for s, n in part.notes if s is Severity.REVIEW]
    beside = [(s, n) for s, n in reviews if n.file not in files]
    for file in dict.fromkeys(note.file for _, note in beside):
        yield FileResult(file.path, findings=_once(_finding(n, s, None) for s, n in beside if n.file is file))
    for path, text in () if part.stays else part.configs.items():
        yield FileResult(path, FileKind.DS_CONFIG, FileStatus.CREATED, after=text, units=frozenset({name}))


def merge_notes(results: Sequence[FileResult]) -> list[FileResult]:
    """Return the results with a file's notes in one: several loops may report on a file that they leave as it is."""
    only_notes = [r for r in results if r.status is FileStatus.UNCHANGED and not r.trials and not r.units]
    merged = {r.path: r for r in (*only_notes[::-1], *(r for r in results if r not in only_notes))}
    for result in only_notes:
        known = merged[result.path]
        known.findings += [finding for finding in result.findings if finding not in known.findings]
        known.findings.sort(key=lambda f: (f.line, f.column, f.code))
    return [r for r in results if r not in only_notes or merged[r.path] is r]


def _finding(of: Note | Refusal, severity: Severity, loop: str | None) -> Finding:
    line, column = of.file.reported_position(of.node)
    return Finding(of.code, severity, line, of.message, column, trial=loop, help=of.help)


def _once(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings without those that repeat another one of their line, as for each of several optimizers."""
    found: dict[tuple[str, Severity, int, str], Finding] = {}
    for finding in findings:
        found.setdefault((finding.code, finding.severity, finding.line, finding.message), finding)
    return list(found.values())


def loop_name(step: Step) -> str:
    function = step.function
    return f"the loop of {step.file.path.stem}" if function is None else f"{function.name.value}()"


def written_configs(engines: Sequence[PlannedEngine]) -> tuple[dict[Path, bytes], list[Refusal]]:
    """Return the configs to write as files, and why some cannot be: a file with other content is there."""
    texts: dict[Path, bytes] = {}
    refusals: list[Refusal] = []
    for engine in engines:
        if engine.json is None:
            continue
        text = divide(engine.config)[0].encode()
        try:
            existing = engine.json.read_bytes()
        except FileNotFoundError:
            texts[engine.json] = text
            continue
        if existing != text:
            refusals.append(
                Refusal(
                    Code.PLAIN_ENGINE, engine.site.file, engine.site.target,
                    f"{engine.json.name} exists with other content than this engine needs",
                    "move it, or leave out --config-style",
                )
            )  # fmt: skip
    return texts, refusals
