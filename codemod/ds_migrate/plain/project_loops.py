"""The plain training loops of a run, found and converted project by project."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ds_migrate.files.discovery import PYTHON_SUFFIXES, Source, project_files
from ds_migrate.files.limits import LARGEST_MODULE
from ds_migrate.files.prefilter import may_hold_loop
from ds_migrate.files.reading import FileReader
from ds_migrate.findings import FileKind, FileResult
from ds_migrate.options import Options
from ds_migrate.plain.parts.results import merge_notes
from ds_migrate.plain.programs.program import Program, find_programs
from ds_migrate.plain.programs.program_results import ProgramResults, differ, shared_results
from ds_migrate.plain.recognition.libraries.frameworks import framework_script
from ds_migrate.plain.recognition.libraries.notebooks import notebook_loop
from ds_migrate.plain.recognition.steps.manual_updates import manual_update_script
from ds_migrate.project.control_comments import CommentReader
from ds_migrate.project.recognition import unreadable


def convert_loops(
    sources: Sequence[Source],
    files: FileReader,
    comments: CommentReader,
    options: Options,
    progress: Callable[[int, int], None],
) -> tuple[list[FileResult], set[tuple[Path, int]]]:
    """Return the results of every file with a plain loop, and the comments that skip one (path and line)."""
    members: dict[str, list[Source]] = {}
    for source in sources:
        members.setdefault(source.root_name, []).append(source)
    results: list[FileResult] = []
    skips: set[tuple[Path, int]] = set()
    for root, named in members.items():
        names = project_files(Path(root), next((s.listed for s in named if s.listed is not None), None))
        given = {source.real_name for source in named}
        programs, broken = find_programs(Path(root), sorted({*names, *given}), given, files.read)
        results += [
            FileResult(path, findings=[unreadable(files.read(path) or b"", LARGEST_MODULE)])
            for path in broken
            if str(path) in given
        ]
        folders = Counter(path.parent for p in programs for path in p.files if may_hold_loop(files.read(path) or b""))
        single = frozenset(folder for folder, loops in folders.items() if loops == 1)
        wanted = [p for p in programs if any(str(path) in given for path in p.files)]
        converted = list(_convert_programs(wanted, files, comments, options, single, progress))
        skips = skips.union(*(found.skips for found in converted))
        for result in shared_results(converted):
            if files.is_writable(result.path) or result.findings or result.kind is FileKind.DS_CONFIG:
                results.append(result)
        known = {result.path for result in results if result.trials}
        for source in named:
            is_python = source.real.suffix in PYTHON_SUFFIXES and source.real not in known
            data = files.read(source.real) if is_python else None
            if data is not None:
                left = (
                    framework_script(source.real, data)
                    or (notebook_loop(source.real, data) if source.real.suffix == ".ipynb" else None)
                    or manual_update_script(source.real, data)
                )
                results += [left] if left is not None else []
    return merge_notes(results), skips


def _convert_programs(
    programs: Sequence[Program],
    files: FileReader,
    comments: CommentReader,
    options: Options,
    single_loop_folders: frozenset[Path],
    progress: Callable[[int, int], None],
) -> Iterator[ProgramResults]:
    """Yield the results of each program."""
    if not programs:
        return
    from ds_migrate.plain.conversion import LoopUnit, convert_program
    from ds_migrate.plain.programs.parsed_files import ParsedFiles

    parsed = ParsedFiles(programs)
    written: dict[Path, bytes] = {}
    for done, program in enumerate(programs, 1):
        unit = LoopUnit(
            program,
            {path: data for path in program.paths if (data := files.read(path)) is not None},
            frozenset(path for path in program.changeable if files.is_writable(path)),
            {path: comments(path) for path in program.files},
            options,
            single_loop_folders,
        )
        found = convert_program(unit, parsed)
        if differ(found, written):
            parsed.expect(program)
            earlier = {path: written[path] for path in program.context if path in written}
            found = convert_program(replace(unit, earlier=earlier), parsed)
        written |= {result.path: result.after for result in found.files if result.after is not None}
        yield found
        progress(done, len(programs))
