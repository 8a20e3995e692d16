"""From the files of a run to its report: know the project, plan each family of trials, render, check.

Nothing is written here. libcst is imported only once there is a trial to convert.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ds_migrate.experiment import ConfigFile
from ds_migrate.experiment.search_terms import may_be_started, words_of
from ds_migrate.files.discovery import CONFIG_SUFFIXES, Source, by_parts, project_files, read_file
from ds_migrate.files.prefilter import may_hold_trial
from ds_migrate.findings import (
    FileKind,
    FileResult,
    FileStatus,
    Finding,
    Report,
    Severity,
    TrialResult,
    TrialStatus,
)
from ds_migrate.options import Options
from ds_migrate.project.trials import Family, Project, TrialClass
from ds_migrate.rules.codes import Code

if TYPE_CHECKING:
    from ds_migrate.conversion.unit import Conversion
    from ds_migrate.experiment import TrialFacts
    from ds_migrate.files.notebook import Notebook

_PYTHON = (".py", ".ipynb")
_KINDS = {
    "deepspeed": TrialStatus.ALREADY_DEEPSPEED,
    "old-api": TrialStatus.UNSUPPORTED_API,
    "lightning": TrialStatus.UNSUPPORTED_API,
    "foreign-base": TrialStatus.BLOCKED,
    "skipped": TrialStatus.SKIPPED,
    "skipped-base": TrialStatus.BLOCKED,
}
_STAYING = ("old-api", "foreign-base", "skipped", "skipped-base")  # they need their files as they are


def migrate(
    sources: Sequence[Source],
    options: Options,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    jobs: int | None = 1,
) -> Report:
    """Plan the conversion of every trial in the named sources. Raises nothing for what a file may hold.

    ``progress`` is told (done, all) families of trials of a project as it goes. ``jobs`` is how many processes convert,
    None for as many as pay.
    """
    run = _Run({s.real_name: s for s in sources}, options, progress, jobs)
    roots: dict[str, list[Source]] = {}
    for source in sources:
        if source.data is not None or source.name.endswith(_PYTHON):
            roots.setdefault(source.root_name, []).append(source)
    for root, members in roots.items():
        if any(s.data is not None and s.name.endswith(_PYTHON) for s in members):
            run.project(Path(root), members)
    run._written_by_cells()
    for path, result in run.results.items():
        if path in run.notebooks:
            run._as_notebook(path, result)
    return Report([f for f in run.results.values() if f.trials or f.findings or f.to_write])


@dataclass
class _Run:
    """The named files by their real names, the results by real path, and every file read so far."""

    sources: dict[str, Source]
    options: Options
    progress: Callable[[int, int], None]
    jobs: int | None
    results: dict[Path, FileResult] = field(default_factory=dict)
    notebooks: dict[Path, Notebook] = field(default_factory=dict)
    _data: dict[Path, bytes | None] = field(default_factory=dict)

    def read(self, path: Path) -> bytes | None:
        """The bytes of a file. Only those of files that may hold a trial are kept: memory stays flat."""
        if path in self._data:
            return self._data[path]
        source = self.source(path)
        try:
            data = source.read() if source is not None else read_file(str(path))
        except OSError:
            data = None
        if data is not None and path.suffix == ".ipynb":
            data = self._notebook(path, data)
        if data is None or may_hold_trial(data):
            self._data[path] = data
        return data

    def _notebook(self, path: Path, data: bytes) -> bytes | None:
        """The code of a notebook as a module; None for one that cannot be worked on."""
        if not may_hold_trial(data):
            return b""
        from ds_migrate.files.notebook import Notebook, NotebookError

        try:
            self.notebooks[path] = Notebook.parse(data)
        except NotebookError as error:
            self._data[path] = None
            if self.named(path) and b"PyTorchTrial" in data:
                result = self.result(path, FileKind.NOTEBOOK)
                result.status = FileStatus.ERROR
                result.findings.append(Finding(Code.UNREADABLE_SOURCE, Severity.ERROR, 1, f"{path.name} {error}"))
            return None
        return self.notebooks[path].module()

    def _as_notebook(self, path: Path, result: FileResult) -> None:
        """Turn the result of a notebook's module into the notebook's own."""
        notebook = self.notebooks[path]
        source = self.source(path)
        result.kind = FileKind.NOTEBOOK
        result.before = source.read() if source is not None else read_file(str(path))
        if result.after is not None:
            result.after = notebook.with_module(result.after)
        for index, finding in enumerate(result.findings):
            cell, line = notebook.locate(finding.line)
            result.findings[index] = replace(finding, cell=cell, line=line)

    def result(self, path: Path, kind: FileKind = FileKind.PYTHON) -> FileResult:
        """The result of a file, named as the user named it."""
        if path not in self.results:
            source = self.source(path)
            self.results[path] = FileResult(source.path if source is not None else path, kind, before=self.read(path))
        return self.results[path]

    def source(self, path: Path) -> Source | None:
        return self.sources.get(str(path))

    def named(self, path: Path) -> bool:
        """Whether the file may be written: it was named, or lies in a folder that was."""
        return str(path) in self.sources

    def project(self, root: Path, members: Sequence[Source]) -> None:
        files = project_files(root, next((s.listed for s in members if s.listed is not None), None))
        python = {f for f in files if f.endswith(_PYTHON)} | {s.real_name for s in members if s.name.endswith(_PYTHON)}
        yaml = [Path(f) for f in files if f.endswith(CONFIG_SUFFIXES)]
        configs = self._config_files([*yaml, *(s.real for s in members if s.name.endswith(CONFIG_SUFFIXES))])
        words = words_of(config.data for config in configs)
        concerned = [Path(f) for f in sorted(python, key=by_parts) if self._speaks(f) or may_be_started(f, words)]
        project = Project(root, python, self.read, concerned)
        self._unparsable(project, members)
        self._recognised(project)
        conversions = self._conversions(project)
        self._still_determined(project, members, conversions)
        self._convert(project, configs, conversions)

    def _speaks(self, name: str) -> bool:
        """Whether a file holds a word of a migration; the walk has looked into those that were named."""
        source = self.sources.get(name)
        if source is not None and source.name.endswith(_PYTHON):
            return source.data is not None
        return may_hold_trial(self.read(Path(name)) or b"")

    def _config_files(self, paths: Iterable[Path]) -> list[ConfigFile]:
        """Those that may be experiment configs, read."""
        return [
            ConfigFile(path, data, self.named(path))
            for path in dict.fromkeys(paths)
            if (data := self.read(path)) is not None and b"entrypoint" in data
        ]

    def _unparsable(self, project: Project, members: Iterable[Source]) -> None:
        """Named files that look like trials and do not parse."""
        for source in members:
            if source.data is None or b"PyTorchTrial" not in source.data or source.path.suffix not in _PYTHON:
                continue
            if source.real not in self.results and project.facts(source.real) is None:
                line, message = _why(self.read(source.real) or b"")
                result = self.result(source.real)
                result.status = FileStatus.ERROR
                result.findings.append(Finding(Code.UNREADABLE_SOURCE, Severity.ERROR, line, message))

    def _recognised(self, project: Project) -> None:
        """Trials that are not for converting, said so where they stand."""
        for (path, name), trial in project.trials.items():
            status = _KINDS.get(trial.kind)
            if status is None or not self.named(path):
                continue
            result = self.result(path)
            result.trials.append(TrialResult(name, trial.facts.line, status))
            finding = _recognition(trial)
            if finding is not None:
                result.findings.append(finding)

    def _written_by_cells(self) -> None:
        """Trials in cells that write files: the notebook does not run them, so they are left and said to be."""
        for path, notebook in self.notebooks.items():
            for line, magic in notebook.written_trials() if self.named(path) else ():
                message = f"a PyTorchTrial stands in a {magic} cell, which stays as it is"
                advice = "convert the file that the cell writes, or make it a cell of Python"
                self.result(path).findings.append(
                    Finding(Code.STILL_DETERMINED, Severity.REVIEW, line, message, help=advice)
                )

    def _still_determined(self, project: Project, members: Sequence[Source], done: Sequence[Conversion]) -> None:
        """Files that import Determined and belong to no trial: they stay, and are said to."""
        moved = {path for conversion in done for path in conversion.family.files}
        trials = {path for path, _ in project.trials}
        for source in members:
            if source.data is None or b"determined" not in source.data:
                continue
            path = source.real
            facts = project.facts(path) if path.suffix in _PYTHON and path not in moved else None
            if not done or facts is None or path in trials or path in self.results:
                continue
            line = next((i.line for i in facts.imports if i.level == 0 and i.module.split(".")[0] == "determined"), 0)
            if line:
                message = "it imports determined and belongs to no trial; it stays as it is"
                self.result(path).findings.append(Finding(Code.STILL_DETERMINED, Severity.REVIEW, line, message))

    def _clients(self, project: Project, families: Sequence[Family]) -> None:
        """Scripts that hand a trial to a cluster stay as they are, and are said to."""
        for family in families:
            for trial in family.trials:
                for path in project.importers(trial):
                    if self.named(path) and project.talks_to_cluster(path):
                        name = trial.facts.name
                        message = f"it hands {name} to a Determined cluster; ds-train CONFIG.yaml runs it without one"
                        self.result(path).findings.append(
                            Finding(Code.CLUSTER_CLIENT, Severity.REVIEW, 1, message, trial=trial.facts.name)
                        )

    def _conversions(self, project: Project) -> list[Conversion]:
        """One for each family with a trial in a named file; nothing is parsed yet."""
        families = [f for f in project.families() if any(self.named(t.path) for t in f.trials)]
        if not families:
            return []
        from ds_migrate.conversion.unit import Conversion

        self._clients(project, families)
        conversions = []
        for family in families:
            others = [t for t in project.trials.values() if t.kind in _STAYING and t.path in family.files]
            conversions.append(Conversion(family, others, self.read, self.named, self.options))
        return conversions

    def _convert(self, project: Project, configs: list[ConfigFile], conversions: Sequence[Conversion]) -> None:
        """Convert the trials, and the experiment and DeepSpeed configs around them; each sees what the others say."""
        from ds_migrate import ds_config, experiment

        scripts = _scripts(project) if configs else {}
        trials = [facts for conversion in conversions for facts in conversion.facts()]
        said = experiment.facts_for(configs, trials, scripts, root=project.root) if configs else {}
        trials = []
        if conversions:
            from ds_migrate.conversion.worker_pool import convert_all

            trials = convert_all(conversions, said, self.jobs, self.progress)
        for conversion in conversions:
            for path, result in conversion.results(self.result):
                self.results[path] = result
        trials += _deepspeed_facts(project, self.source)
        if configs:
            for result in experiment.plan(configs, trials, scripts, target=self.options.target, root=project.root):
                self._add(result, conversions)
        for result in ds_config.plan(trials):
            self._add(result, conversions)

    def _add(self, result: FileResult, conversions: Sequence[Conversion]) -> None:
        trials = {f.trial for f in result.findings}
        concerned = [c.unit for c in conversions if trials & {t.facts.name for t in c.family.trials}]
        result.units = frozenset(concerned or [c.unit for c in conversions])
        source = self.source(result.path)
        self.results[result.path] = result
        if source is not None:
            result.path = source.path
        else:  # a file to create: named as its neighbours were
            beside = self._beside.get(str(result.path.parent))
            if beside is not None:
                result.path = beside.path.with_name(result.path.name)

    @cached_property
    def _beside(self) -> dict[str, Source]:
        """By folder, a file in it."""
        found: dict[str, Source] = {}
        for source in self.sources.values():
            found.setdefault(source.real_name.rpartition("/")[0] or "/", source)
        return found


def _deepspeed_facts(project: Project, source_of: Callable[[Path], Source | None]) -> Iterable[TrialFacts]:
    """Trials that an earlier run converted: configs that were not named then may follow now."""
    from ds_migrate.experiment import TrialFacts

    for (path, name), trial in project.trials.items():
        source = source_of(path) if trial.kind == "deepspeed" else None
        data = (source.data if source is not None else None) or b""
        if b'"deepspeed_config"' in data:
            written = re.search(rb'with_name\("([^"]+\.json)"\)', data)
            target = path.with_name(written.group(1).decode() if written else "ds_config.json")
            yield TrialFacts(
                name,
                path,
                TrialStatus.ALREADY_DEEPSPEED,
                {},
                target,
                sums_gradients=b"scale_wrt_gas=False" in data and b".average_gradients(" not in data,
                reads_deepspeed_config=True,
            )


def _scripts(project: Project) -> dict[Path, list[tuple[Path, str]]]:
    """Scripts and the trials they run: their own, and those they import."""
    found: dict[Path, list[tuple[Path, str]]] = {}
    for (path, name), trial in project.trials.items():
        if trial.kind not in ("pytorch", "deepspeed"):
            continue
        found.setdefault(path, []).append((path, name))
        for script in project.importers(trial):
            found.setdefault(script, []).append((path, name))
    return found


def _why(data: bytes) -> tuple[int, str]:
    """Line and reason of a file that does not parse."""
    try:
        ast.parse(data)
    except SyntaxError as error:
        return error.lineno or 1, f"does not parse: {error.msg}"
    except (ValueError, RecursionError, MemoryError) as error:
        return 1, f"does not parse: {error}"
    return 1, "does not parse"


def _recognition(trial: TrialClass) -> Finding | None:
    name, line = trial.facts.name, trial.facts.line
    if trial.kind in ("deepspeed", "skipped"):
        return None
    if trial.kind == "skipped-base":
        return Finding(
            Code.MOVES_WITH_BLOCKED, Severity.BLOCKED, line, f"{name} is built on a trial that is skipped", trial=name,
            help="skip it too, or take the skip comment off the class that it is built on",
        )  # fmt: skip
    if trial.kind == "old-api":
        return Finding(
            Code.OLD_API, Severity.REVIEW, line, f"{name} is written for the API before 0.13 (build_model, optimizer)",
            trial=name,
            help="wrap model, optimizer and scheduler in __init__ through the context, then run again",
        )  # fmt: skip
    if trial.kind == "lightning":
        return Finding(
            Code.LIGHTNING_ADAPTER, Severity.REVIEW, line, f"{name} is a LightningAdapter", trial=name,
            help="drop the adapter: lightning.Trainer(strategy='deepspeed') drives DeepSpeed itself",
        )  # fmt: skip
    bases = ", ".join(b for b in trial.facts.bases if b)
    if "PyTorchTrial" in {base.rpartition(".")[2] for base in trial.facts.bases}:
        return Finding(
            Code.FOREIGN_BASE, Severity.BLOCKED, line, f"{name} does not take PyTorchTrial from determined itself",
            trial=name,
            help="write from determined.pytorch import PyTorchTrial in its file, and so for all names of determined",
        )  # fmt: skip
    return Finding(
        Code.FOREIGN_BASE, Severity.BLOCKED, line, f"{name} is built on {bases}, which is not in this project",
        trial=name,
        help="convert the base class where it is, or copy it into the project, and run again on both",
    )  # fmt: skip
