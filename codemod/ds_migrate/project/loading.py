"""The project around the files that were named: its modules, and the YAML files that may be experiment configs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ds_migrate.files.discovery import CONFIG_SUFFIXES, PYTHON_SUFFIXES, Source, by_parts, project_files
from ds_migrate.files.prefilter import may_be_started, may_hold_trial, words_of
from ds_migrate.files.reading import FileReader
from ds_migrate.project.control_comments import CommentReader
from ds_migrate.project.trials import Project


@dataclass(frozen=True)
class ConfigFile:
    """A YAML file that may be an experiment config. ``path`` is absolute; ``named`` files may be written."""

    path: Path
    data: bytes
    named: bool = True


def projects_of(sources: Iterable[Source]) -> dict[Path, list[Source]]:
    """Return the files of a run by the root of their project, for projects that may hold a trial."""
    members: dict[str, list[Source]] = {}
    for source in sources:
        members.setdefault(source.root_name, []).append(source)
    return {Path(root): found for root, found in members.items() if any(map(_may_hold_trial, found))}


def load_project(
    root: Path, members: Sequence[Source], files: FileReader, comments: CommentReader
) -> tuple[Project, list[ConfigFile]]:
    """Return the project in ``root``, of which the files ``members`` were named, and its YAML files with an
    ``entrypoint``."""
    names = project_files(root, next((s.listed for s in members if s.listed is not None), None))
    names += [source.real_name for source in members]
    python = {name for name in names if name.endswith(PYTHON_SUFFIXES)}
    yaml = dict.fromkeys(Path(name) for name in names if name.endswith(CONFIG_SUFFIXES))
    configs = [
        ConfigFile(path, data, files.is_writable(path))
        for path in yaml
        if not files.is_ruled_out(path) and (data := files.read(path)) is not None and b"entrypoint" in data
    ]
    words = words_of(config.data for config in configs)
    concerned = []
    for name in sorted(python, key=by_parts):
        path = Path(name)
        holds_word = not files.is_ruled_out(path) and may_hold_trial(files.read(path) or b"")
        if holds_word or may_be_started(name, words):
            files.keep(path)
            concerned.append(path)
    return Project(root, python, concerned, files.read, comments), configs


def _may_hold_trial(source: Source) -> bool:
    return source.data is not None and source.name.endswith(PYTHON_SUFFIXES)
