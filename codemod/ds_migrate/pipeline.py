"""The way of a run from its files to its report. Nothing is written here; libcst is imported for a trial only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ds_migrate import ds_config
from ds_migrate.experiment.earlier_runs import converted_earlier, missing_configs
from ds_migrate.experiment.facts import facts_for
from ds_migrate.experiment.model import ConfigFacts, TrialFacts
from ds_migrate.experiment.planning import plan, read_configs
from ds_migrate.files.discovery import Source
from ds_migrate.files.naming import merge_results, name_results
from ds_migrate.files.prefilter import words_of
from ds_migrate.files.reading import FileReader
from ds_migrate.findings import FileResult, Report
from ds_migrate.options import Options
from ds_migrate.project import recognition
from ds_migrate.project.comment_effects import results_of_comments
from ds_migrate.project.control_comments import CommentReader
from ds_migrate.project.conversion_groups import ConversionGroup, ConversionGroups
from ds_migrate.project.library_bases import LIBRARY_BASE, LIBRARY_PATH, LIBRARY_SOURCE
from ds_migrate.project.loading import ConfigFile, load_project, projects_of
from ds_migrate.project.trials import Project
from ds_migrate.upgrade.followed_bases import Followed, follow_bases
from ds_migrate.upgrade.result import Upgrade, may_need_upgrade

if TYPE_CHECKING:
    from ds_migrate.conversion.values import ConversionUnit, UnitResult


def migrate(
    sources: Sequence[Source],
    options: Options,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    jobs: int | None = 1,
) -> Report:
    """Return what the conversion of every trial in the named sources changes, and what there is to know about it.

    ``progress`` gets (done, all) conversion units of a project. ``jobs`` is the number of processes that convert, None
    for as many as pay off. Raises nothing for what a file holds.
    """
    if options.plain:
        return _migrate_loops(sources, options, progress)
    followed = follow_bases(sources, options.follow) if options.follow else Followed()
    sources = [*sources, *followed.copies]
    files = FileReader(sources)
    files.to_create |= {copy.real for copy in followed.copies}
    for path, module in followed.modules.items():
        files.rewrite(path, module.data, module.origins)
    comments = CommentReader(files.read)
    results: list[FileResult] = [*followed.results]
    skips: set[tuple[Path, int]] = set()
    for root, members in projects_of(sources).items():
        project, config_files = load_project(root, members, files, comments)
        upgraded = _upgraded(project, config_files, files, comments)
        project = project.read_anew(upgraded.modules) if upgraded.modules else project
        grouping = ConversionGroups(project)
        groups = [g for g in grouping.all() if any(files.is_writable(t.path) for t in g.trials)]
        scripts = grouping.scripts() if config_files else {}

        earlier = list(converted_earlier(project, files))
        expected = [TrialFacts.expected(*trial.key) for group in groups for trial in group.trials]
        configs = read_configs(config_files, [*expected, *earlier], scripts, root)
        config_facts = facts_for(configs)
        units = _units(grouping, groups, config_facts, files, comments, options, upgraded)
        converted = _convert_all(units, jobs, progress)
        trials = [*(trial for result in converted for trial in result.trials), *earlier]

        left = [
            *recognition.unparsable_files(project, members, files),
            *recognition.trials_left_alone(project, files, upgraded.problems),
            *recognition.cluster_clients(grouping, groups, files),
        ]
        known = {result.path for result in left}.union(*(group.files for group in groups))
        still = recognition.files_still_determined(project, members, known) if groups else ()
        given = recognition.batches_given_elsewhere(project, members, known) if groups else ()
        results += [*left, *still, *given, *(file for result in converted for file in result.files)]
        missing = list(missing_configs(earlier, config_facts))
        restored = {result.path: result.after for result in missing if result.after is not None}
        deepspeed_configs = [*missing, *ds_config.plan(trials, restored)]
        results += _with_units([*plan(configs, trials, scripts, options.target), *deepspeed_configs], units)
        skips |= project.skips

    results = merge_results([*results, *recognition.trials_written_by_cells(files)])
    noted = {source.real: comments(source.real) for source in sources if source.data is not None}
    results, accepted = results_of_comments(results, noted, skips)
    accepted += options.ignored.take_from(results)
    named = name_results(results, sources, files)
    news = [file for file in named if file.trials or file.findings or file.to_write]
    return Report(_by_folder(news), accepted=accepted)


def _by_folder(files: Sequence[FileResult]) -> list[FileResult]:
    """Return files folder by folder, in the order in which the folders come first."""
    folders = {folder: at for at, folder in enumerate(dict.fromkeys(file.path.parent for file in files))}
    return sorted(files, key=lambda file: folders[file.path.parent])


def _migrate_loops(sources: Sequence[Source], options: Options, progress: Callable[[int, int], None]) -> Report:
    """Return what the conversion of every plain training loop in the named sources changes."""
    from ds_migrate.plain.project_loops import convert_loops

    files = FileReader(sources)
    comments = CommentReader(files.read)
    results, skips = convert_loops(sources, files, comments, options, progress)
    results = merge_results(results)
    noted = {result.path: comments(result.path) for result in results}
    noted |= {source.real: comments(source.real) for source in sources if source.data is not None}
    results, accepted = results_of_comments(results, noted, skips)
    named = name_results(results, sources, files)
    return Report([file for file in named if file.trials or file.findings or file.to_write], accepted=accepted)


def _upgraded(project: Project, configs: Sequence[ConfigFile], files: FileReader, comments: CommentReader) -> Upgrade:
    """Let old trials be read as ones for today's API."""
    if not may_need_upgrade(project, files.read):
        return Upgrade()
    from ds_migrate.upgrade.upgrader import upgrade

    result = upgrade(project, files.read, words_of(config.data for config in configs))
    for path, module in result.modules.items():
        files.rewrite(path, module.data, module.origins)
        comments.forget(path)
    return result


def _units(
    grouping: ConversionGroups,
    groups: Iterable[ConversionGroup],
    config_facts: Mapping[tuple[Path, str], ConfigFacts],
    files: FileReader,
    comments: CommentReader,
    options: Options,
    upgraded: Upgrade,
) -> list[ConversionUnit]:
    """Return what the conversion of each group depends on, as a value."""
    units = []
    for group in groups:
        from ds_migrate.conversion.values import ConversionUnit

        facts = {trial.key: config_facts[trial.key] for trial in group.trials if trial.key in config_facts}
        concerned = group.files.union(*(known.configs for known in facts.values()))
        library = any(LIBRARY_BASE in trial.bases for trial in group.trials)
        unit = ConversionUnit(
            trials=tuple(group.trials),
            others=tuple(grouping.staying_in(group.files)),
            sources={path: files.read(path) or b"" for path in group.files},
            library={LIBRARY_PATH: LIBRARY_SOURCE} if library else {},
            writable=frozenset(filter(files.is_writable, concerned)),
            accepted={path: comments(path).accepted | _whole_file(options, path) for path in group.files},
            options=options,
            config_facts=facts,
            used_beside=grouping.names_used_beside(group),
            helpers=grouping.helpers_of(group),
            upgraded={
                path: upgraded.modules[path].notices if path in upgraded.modules else ()
                for path in group.files
                if path in files.rewritten or path in files.to_create
            },
        )
        units.append(unit)
    return units


def _whole_file(options: Options, path: Path) -> frozenset[tuple[int, str]]:
    """Return the codes that are accepted in all of a file, at line 0."""
    return frozenset((0, code) for code in options.ignored.of(path))


def _convert_all(
    units: Sequence[ConversionUnit], jobs: int | None, progress: Callable[[int, int], None]
) -> list[UnitResult]:
    if not units:
        return []
    from ds_migrate.conversion.worker_pool import convert_all

    return convert_all(units, jobs, progress)


def _with_units(results: Iterable[FileResult], units: Sequence[ConversionUnit]) -> Iterator[FileResult]:
    """Yield results of configs with the units that they are written together with: those of their trials, else all."""
    for result in results:
        trials = {finding.trial for finding in result.findings}
        own = [unit.name for unit in units if trials & {trial.facts.name for trial in unit.trials}]
        result.units = frozenset(own or (unit.name for unit in units))
        yield result
