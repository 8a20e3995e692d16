"""Groups that are converted together: trials, their base classes, the project files that they import and that use
Determined, and the scripts that run them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from pathlib import Path

from ds_migrate.files.limits import LARGEST_READ
from ds_migrate.project.library_bases import LIBRARY_PATH
from ds_migrate.project.module_index import ModuleFacts
from ds_migrate.project.trial_class import TrialClass
from ds_migrate.project.trials import Project
from ds_migrate.targets import LIBRARY, MOVED

# Calls of a PyTorchTrialContext that are converted, spelled so that prose about it does not count.
_CONTEXT_CALLS = re.compile(
    rb"\.(wrap_model|wrap_optimizer|step_optimizer|wrap_scaler|configure_apex_amp|autocast_forward_pass"
    rb"|get_experiment_config)\("
    rb"|(?i:context|ctx)\.(backward\(|experimental\.)"
)
# A batch given to a method that takes an iterator once its trial is converted; a stand-in for the context.
_HAND_RUN = re.compile(
    rb"\.(train_batch|evaluate_batch)\(|\bdef (wrap_model|wrap_optimizer|step_optimizer)\(|\.wrap_model ="
)
_DEFINED = re.compile(rb"^(?:class|def)\s+(\w+)", re.MULTILINE)
_DEFINED_ANYWHERE = re.compile(rb"^[ \t]*(?:class|def)\s+(\w+)", re.MULTILINE)
_IMPORTS = re.compile(rb"^[ \t]*(?:from\s+\S+\s+)?import\s+(?:\([^)]*\)|.*)", re.MULTILINE)
_WORD = re.compile(rb"[^\W\d]\w*")
_LOOKS_UP = re.compile(
    rb"\b(?:globals|locals|vars|eval|exec|__dict__|__subclasses__|import_module|__import__|getmembers|locate"
    rb"|instantiate)\b|getattr\(\s*(?!torch|self|nn\b|np\b)[\w.]+\s*,\s*[^\s\"']"
)
_PYTORCH = "determined.pytorch"
_STAYING = ("old-api", "foreign-base", "tensorflow", "skipped", "skipped-base")
_CLIENTS = ("determined.experimental", "determined.common", "determined.cli", "determined.cluster")


@dataclass
class ConversionGroup:
    """Trials and files that are converted together: all of them or none. ``beside``: other files that those import or
    that import the trials; ``imported``: the former."""

    trials: list[TrialClass] = field(default_factory=list)
    files: set[Path] = field(default_factory=set)
    beside: set[Path] = field(default_factory=set)
    imported: set[Path] = field(default_factory=set)


class ConversionGroups:
    """The conversion groups of a project, and which of its files import or run its trials."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._importers: dict[Path, set[Path]] | None = None

    def all(self) -> list[ConversionGroup]:
        """Return groups of PyTorchTrials with every project file that must be converted along with them."""
        groups: list[ConversionGroup] = []
        for trial in self._project.trials.values():
            if trial.kind != "pytorch":
                continue
            files = {trial.path, *(path for path, _ in trial.bases)} - {LIBRARY_PATH}
            using, reached = self._determined_files_imported_by(files)
            files |= using | self._scripts_running(trial)
            merged = ConversionGroup([trial], files, reached | self.importers(trial), reached)
            for other in [group for group in groups if group.files & files]:
                groups.remove(other)
                trials, files = [*other.trials, *merged.trials], other.files | merged.files
                imported = other.imported | merged.imported
                merged = ConversionGroup(trials, files, other.beside | merged.beside, imported)
            groups.append(merged)
        for group in groups:
            group.beside -= group.files
            group.imported -= group.files
            group.trials.sort(key=lambda t: (t.path, t.facts.line))
        return groups

    def scripts(self) -> dict[Path, list[tuple[Path, str]]]:
        """Return the scripts and the trials that they run: their own, and those they import."""
        found: dict[Path, list[tuple[Path, str]]] = {}
        for trial in self._project.trials.values():
            if trial.kind in ("pytorch", "deepspeed"):
                for script in (trial.path, *self.importers(trial)):
                    found.setdefault(script, []).append(trial.key)
        return found

    def staying_in(self, files: Set[Path]) -> list[TrialClass]:
        """Return the trials in the files that cannot be converted and need their files unchanged."""
        return [trial for trial in self._project.trials.values() if trial.kind in _STAYING and trial.path in files]

    def _determined_files_imported_by(self, files: set[Path]) -> tuple[set[Path], set[Path]]:
        """Return the files that use Determined, of those that these import, directly or through others; and all."""
        found: set[Path] = set()
        seen: set[Path] = set(files)
        queue = list(files)
        while queue:
            path = queue.pop()
            facts = self._project.facts(path)
            if facts is None:
                if len(self._project.read(path) or b"") > LARGEST_READ:
                    found.add(path)  # it may use Determined
                continue
            library = facts.imports_from("model_hub") and self._project.resolve(path, "model_hub") is None
            if any(map(facts.imports_from, LIBRARY)) or library or self._uses_context(path):
                found.add(path)
            reached = [self._project.imported_file(path, imported) for imported in facts.imports]
            for target in (*reached, *self._packages_of(path)):
                if target is not None and target not in seen:
                    seen.add(target)
                    queue.append(target)
        return found, seen

    def names_used_beside(self, group: ConversionGroup) -> frozenset[str]:
        """Return the classes and functions of the group's files that files beside them name: all of them where such a
        file looks names up that are made when the code runs."""
        defined = {name for path in group.files for name in _DEFINED.findall(self._project.read(path) or b"")}
        texts = [self._project.read(path) or b"" for path in group.beside]
        if not any(map(_LOOKS_UP.search, texts)):
            defined &= {word for text in texts for word in _WORD.findall(text)}
        return frozenset(name.decode("utf-8", "replace") for name in defined)

    def helpers_of(self, group: ConversionGroup) -> dict[Path, bytes]:
        """Return the imported files that stay as they are and define what the group's code, or one of them, names."""
        unused = {path: self._project.read(path) or b"" for path in group.imported}
        defined = {path: set(_DEFINED_ANYWHERE.findall(text)) for path, text in unused.items()}
        used: dict[Path, bytes] = {}
        queue = [self._project.read(path) or b"" for path in group.files]
        while queue:
            text = queue.pop()
            words = set(_WORD.findall(_IMPORTS.sub(b"", text)))
            by_name = _LOOKS_UP.search(text) is not None
            for path in [path for path in unused if by_name or not words.isdisjoint(defined[path])]:
                used[path] = unused.pop(path)
                queue.append(used[path])
        return used

    def _packages_of(self, path: Path) -> Iterator[Path]:
        """Yield the ``__init__.py`` of each package that holds the file: an import of the file runs them all."""
        for folder in path.parents:
            init = folder / "__init__.py"
            if not self._project.has_file(init):
                return
            yield init

    def _uses_context(self, path: Path) -> bool:
        """Return whether a helper calls a context that it is given, without importing Determined."""
        return _CONTEXT_CALLS.search(self._project.read(path) or b"") is not None

    def _scripts_running(self, trial: TrialClass) -> set[Path]:
        """Return the files that import the trial and run it, with Determined's trainer or without it. One that only
        uses the module, for inference or in a Core API program, stays as it is: ds-train serves what it imports."""
        return {
            p
            for p in self.importers(trial)
            if (f := self._project.facts(p)) is not None
            and not self.is_cluster_client(p)
            and (self._uses_trainer(p, f) or _HAND_RUN.search(self._project.read(p) or b""))
        }

    def _uses_trainer(self, path: Path, facts: ModuleFacts) -> bool:
        """Return whether a file has a name of the trial API that the conversion changes."""
        if any(meaning in MOVED for meaning in facts.aliases.values()):
            return True
        packages = [(bound, name) for bound, name in facts.aliases.items() if name in ("determined", _PYTORCH)]
        names = [bound + new.removeprefix(name) for bound, name in packages for new in MOVED]
        data = self._project.read(path) or b""
        return any(re.search(rb"\b%b\b" % re.escape(name.encode()), data) for name in names)

    def is_cluster_client(self, path: Path) -> bool:
        """Return whether a file has nothing of Determined but its client: it submits to a cluster."""
        facts = self._project.facts(path)
        names = [f"{i.module}.{i.name}" for i in facts.imports if i.level == 0] if facts is not None else []
        used = [name for name in names if name.split(".")[0] == "determined"]
        return bool(used) and all(name.startswith(_CLIENTS) for name in used)

    def importers(self, trial: TrialClass) -> set[Path]:
        """Return the concerned files that import the trial's module, or the trial from a package that passes it on."""
        if self._importers is None:
            self._importers = {}
            paths = {t.path for t in self._project.trials.values()}
            words = {os.fsencode(p.parent.name if p.name == "__init__.py" else p.stem) for p in paths}
            words |= {t.facts.name.encode() for t in self._project.trials.values()}
            for path in self._project.mentioning(words):
                facts = self._project.facts(path)
                for imported in facts.imports if facts is not None else []:
                    target = self._project.imported_file(path, imported)
                    if target not in paths and imported.name:
                        passed_on = self._project.parent_class(path, imported.qualified)
                        target = passed_on[0] if passed_on in self._project.trials else None
                    if target in paths and target != path and target is not None:
                        self._importers.setdefault(target, set()).add(path)
        return self._importers.get(trial.path, set())
