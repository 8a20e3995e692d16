"""The project around the named files: which classes are trials, across files, and what must be converted together.

A trial is converted whole or not at all, with its base classes, the project files it imports that use Determined, and
the scripts that run it: a ``ConversionGroup``.
"""

from __future__ import annotations

import builtins
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path

from ds_migrate.files.discovery import by_parts
from ds_migrate.files.limits import DEEPEST_CLASS, LARGEST_READ
from ds_migrate.files.prefilter import TRIAL_SIGNS, may_hold_trial
from ds_migrate.project.control_comments import Comments
from ds_migrate.project.import_resolver import ImportResolver
from ds_migrate.project.library_bases import (
    LIBRARY_BASE,
    LIBRARY_PATH,
    TRANSFORMER_TRIALS,
    UNMAINTAINED,
    library_facts,
)
from ds_migrate.project.module_index import (
    DEEPSPEED_TRIALS,
    LIGHTNING_ADAPTER,
    OLD_PYTORCH,
    PYTORCH_TRIAL,
    TENSORFLOW_TRIALS,
    TRIAL_METHODS,
    ClassFacts,
    ImportFacts,
    ModuleFacts,
    module_facts,
)
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
_WORD = re.compile(rb"[^\W\d]\w*")
_LOOKS_UP = re.compile(
    rb"\b(?:globals|locals|vars|eval|exec|__dict__|__subclasses__|import_module|__import__|getmembers|locate"
    rb"|instantiate)\b|getattr\(\s*(?!torch|self|nn\b|np\b)[\w.]+\s*,\s*[^\s\"']"
)
_PYTORCH = "determined.pytorch"
_STAYING = ("old-api", "foreign-base", "tensorflow", "skipped", "skipped-base")
_SOURCES = ("determined", "pedl")  # packages that a project may hold a copy of
_NO_TRIALS = ("torch", "lightning", "pytorch_lightning", "transformers", "determined", "trial_runtime", "abc", "typing")
_CLIENTS = ("determined.experimental", "determined.common", "determined.cli", "determined.cluster")


@dataclass(frozen=True)
class TrialClass:
    """A class that is a PyTorchTrial. ``bases`` are its base classes in this project, mixins included, in the order in
    which Python looks into them; ``LIBRARY_BASE`` is one of them where the trial is built on it. ``again``: the line
    where its file gives its name to another class, else 0."""

    path: Path
    facts: ClassFacts
    kind: str  # "pytorch", "deepspeed", "lightning", "tensorflow", "old-api", "foreign-base", "skipped", "skipped-base"
    bases: tuple[tuple[Path, str], ...] = ()
    again: int = 0

    @property
    def key(self) -> tuple[Path, str]:
        return self.path, self.facts.name


def _merged(lines: list[list[tuple[Path, str]]]) -> list[tuple[Path, str]]:
    """Merge lines of ancestors: each class before its bases, else in the order of the lines."""
    found: list[tuple[Path, str]] = []
    while lines := [line for line in lines if line]:
        heads = [line[0] for line in lines]
        head = next((h for h in heads if not any(h in line[1:] for line in lines)), heads[0])
        found.append(head)
        lines = [[key for key in line if key != head] for line in lines]
    return found


def _is_old(line: Sequence[ClassFacts]) -> bool:
    """Return whether a class with these base classes is written for the API before 0.13: it returns its model and
    optimizer and wraps none."""
    methods = frozenset[str]().union(*(cls.methods for cls in line))
    return {"build_model", "optimizer", "train_batch"} <= methods and not any(cls.wraps or cls.trains for cls in line)


@dataclass
class ConversionGroup:
    """Trials and files that are converted together: all of them or none. ``beside``: other files that those import or
    that import the trials."""

    trials: list[TrialClass] = field(default_factory=list)
    files: set[Path] = field(default_factory=set)
    beside: set[Path] = field(default_factory=set)


class Project:
    """The modules and trials of a project.

    ``files`` are the names of its Python files, ``concerned`` those of them that ``may_hold_trial`` or may run one.
    ``read`` gives a file's bytes, None when it cannot be read, ``comments`` its control comments. ``facts`` are
    known of some files.
    """

    def __init__(
        self,
        root: Path,
        files: Set[str],
        concerned: Sequence[Path],
        read: Callable[[Path], bytes | None],
        comments: Callable[[Path], Comments],
        facts: Mapping[Path, ModuleFacts | None] | None = None,
    ) -> None:
        self.root = root
        self._files = files
        self._concerned = concerned
        self._read = read
        self._comments = comments
        self._facts = dict(facts or {})
        self._imports = ImportResolver(str(root), files.__contains__)
        self._importers: dict[Path, set[Path]] | None = None
        self._lineages: dict[tuple[Path, str], list[tuple[Path, str]]] = {}
        self._depth = 0
        self.trials: dict[tuple[Path, str], TrialClass] = {}
        self._find_trials()

    def facts(self, path: Path) -> ModuleFacts | None:
        """Return the module's facts; None when it does not parse."""
        if path == LIBRARY_PATH:
            return library_facts()
        if path not in self._facts:
            data = self._read(path)
            try:
                is_readable = data is not None and len(data) <= LARGEST_READ
                self._facts[path] = module_facts(data, self._comments(path).skips) if data and is_readable else None
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                self._facts[path] = None
        return self._facts[path]

    def read_anew(self, changed: Collection[Path]) -> Project:
        """Return the project with other contents of some files."""
        known = {path: facts for path, facts in self._facts.items() if path not in changed}
        return Project(self.root, self._files, self._concerned, self._read, self._comments, known)

    def resolve(self, importer: Path, module: str, level: int = 0) -> Path | None:
        """Return the project file that ``import module`` means in ``importer``; None for a library."""
        return self._own(self._imports.resolve(str(importer), module, level))

    def imported_file(self, importer: Path, imported: ImportFacts) -> Path | None:
        """Return the project file that an import statement reaches."""
        found = self._imports.resolve_name(str(importer), imported.module, imported.name, imported.level)
        return self._own(found)

    def _own(self, found: str | None) -> Path | None:
        """Return the path of a file of the project's own; None for a copy of Determined's source: a library."""
        return None if found is None or self.is_vendored(Path(found)) else Path(found)

    def _find_trials(self) -> None:
        """Find direct subclasses first, then, round by round, the classes of other files built on those."""
        queue = self._mentioning(TRIAL_SIGNS, self._concerned)
        asked: set[bytes] = set()
        while queue:
            grown = {name.encode() for path in queue for name in self._classify(path)} - asked
            asked |= grown
            # A name like MyTrial stands in concerned files only; for any other one every file is searched.
            anywhere = {name for name in grown if not may_hold_trial(name)}
            files = map(Path, sorted(self._files, key=by_parts)) if anywhere else ()
            queue = sorted({*self._mentioning(grown, self._concerned), *self._mentioning(anywhere, files)})
        for key, trial in self.trials.items():
            facts = self.facts(trial.path)
            same = [c.line for c in facts.classes if c.name == trial.facts.name] if facts is not None else []
            again = next((line for line in same if line != trial.facts.line), 0)
            self.trials[key] = replace(trial, bases=tuple(self._lineage(key)[1:]), again=again)

    def _mentioning(self, words: Collection[bytes], paths: Iterable[Path]) -> list[Path]:
        """Return the files that hold one of the words; nothing of the others is kept."""
        found = []
        for path in paths:
            data = self._read(path)
            if data is not None and any(word in data for word in words):
                found.append(path)
        return found

    def _classify(self, path: Path) -> list[str]:
        """Add the trials of one file, and return the names that are new."""
        facts = self.facts(path)
        new: list[str] = []
        if facts is None:
            return new
        again = True
        while again:
            again = False
            for cls in facts.classes:
                if (path, cls.name) in self.trials:
                    continue
                trial = self._trial(path, facts, cls)
                if trial is not None:
                    self.trials[trial.key] = trial
                    new.append(cls.name)
                    again = True
        return new

    def _trial(self, path: Path, facts: ModuleFacts, cls: ClassFacts) -> TrialClass | None:
        """Return the class as a trial, None for any other class; a skip comment on it decides its kind."""
        trial = self._recognised(path, facts, cls)
        if trial is None or trial.kind == "deepspeed":
            return trial
        if cls.skip:
            return replace(trial, kind="skipped")
        return replace(trial, kind="skipped-base") if trial.kind == "skipped" else trial

    def _recognised(self, path: Path, facts: ModuleFacts, cls: ClassFacts) -> TrialClass | None:
        if self.is_vendored(path):
            return None
        for base in cls.bases:
            if base.endswith(".PyTorchTrial") and base.startswith(("determined.", f"{OLD_PYTORCH}.")):
                return TrialClass(path, cls, "old-api" if _is_old([cls]) else "pytorch")
            if base in DEEPSPEED_TRIALS:
                return TrialClass(path, cls, "deepspeed")
            if base == LIGHTNING_ADAPTER or (base.startswith("determined.") and base.endswith("LightningAdapter")):
                return TrialClass(path, cls, "lightning")
            if base.endswith(TENSORFLOW_TRIALS) and base.startswith("determined."):
                return TrialClass(path, cls, "tensorflow")
            if self._passed_on(path, base) == PYTORCH_TRIAL or self._is_unmaintained(path, base):
                return TrialClass(path, cls, "foreign-base")
            parent = self.parent_class(path, base)
            if base.rpartition(".")[2] == "PyTorchTrial" and parent is None:
                return TrialClass(path, cls, "foreign-base")
            if parent == LIBRARY_BASE:
                return TrialClass(path, cls, "pytorch", (parent,))
            if parent is not None and parent in self.trials:
                above = self.trials[parent]
                bases = (parent, *above.bases)
                line = [cls, *(self.trials[key].facts for key in bases if key in self.trials)]
                kind = "old-api" if above.kind == "pytorch" and _is_old(line) else above.kind
                return TrialClass(path, cls, kind, bases)
        has_methods = len(TRIAL_METHODS & cls.methods) >= 2 and cls.methods & {
            "build_training_data_loader",
            "train_batch",
        }
        imports = facts.imports_from("determined") or facts.imports_from("model_hub")
        if (
            has_methods
            and imports
            and cls.bases
            and any(b and not b.startswith(".") and b not in ("object", "abc.ABC") for b in cls.bases)
        ):
            foreign = [b for b in cls.bases if self.parent_class(path, b) is None]
            if foreign and not any(b.startswith("torch.") for b in cls.bases):
                return TrialClass(path, cls, "foreign-base")
        if cls.trains and any(self._is_unknown(path, base) for base in cls.bases):
            return TrialClass(path, cls, "foreign-base")
        return None

    def _is_unknown(self, path: Path, base: str) -> bool:
        """Return whether a base class is neither in this project nor in a library that knows no trials."""
        head = base.partition(".")[0]
        known = head in _NO_TRIALS or hasattr(builtins, base) or head in sys.stdlib_module_names
        return bool(base.strip(".")) and not known and self.parent_class(path, base) is None

    def is_vendored(self, path: Path) -> bool:
        """Return whether a file is of a copy of Determined's own source in the project."""
        return any(
            folder.name in _SOURCES and str(folder / "pytorch" / "__init__.py") in self._files
            for folder in path.parents
            if len(folder.parts) >= len(self.root.parts)
        )

    def _is_unmaintained(self, path: Path, base: str) -> bool:
        return base.startswith(UNMAINTAINED) and self.parent_class(path, base) is None

    def parent_class(self, path: Path, base: str) -> tuple[Path, str] | None:
        """Return the file and name under which a base class is defined in this project; None for others."""
        if not base:
            return None
        if base.startswith(".") and "." not in base[1:] and self._defines(path, base[1:]):
            return path, base[1:]
        level = len(base) - len(base.lstrip("."))
        module, _, name = base[level:].rpartition(".")
        target = self.resolve(path, module, level) if (module or level) else None
        if target is None:
            return LIBRARY_BASE if base in TRANSFORMER_TRIALS else None
        if self._defines(target, name):
            return target, name
        facts = self.facts(target)  # re-exported by a package's __init__
        if facts is not None and name in facts.aliases and facts.aliases[name] != base:
            return self.parent_class(target, facts.aliases[name])
        return None

    def _passed_on(self, path: Path, base: str) -> str:
        """Return what another file of the project imports under the name by which this one takes it from there."""
        level = len(base) - len(base.lstrip("."))
        module, _, name = base[level:].rpartition(".")
        target = self.resolve(path, module, level) if module else None
        facts = self.facts(target) if target is not None else None
        return facts.aliases.get(name, "") if facts is not None else ""

    def _lineage(self, key: tuple[Path, str]) -> list[tuple[Path, str]]:
        """Return a class and its base classes in this project, in the order of Python's method resolution."""
        if key not in self._lineages and self._depth < DEEPEST_CLASS:
            self._lineages[key] = [key]  # all that is known of it where it is among its own bases
            self._depth += 1
            self._lineages[key] = self._lineage_of(key)
            self._depth -= 1
        return self._lineages.get(key, [key])

    def _lineage_of(self, key: tuple[Path, str]) -> list[tuple[Path, str]]:
        path, name = key
        facts = self.facts(path)
        bases = next((c.bases for c in facts.classes if c.name == name), ()) if facts is not None else ()
        parents = [p for base in bases if (p := self.parent_class(path, base)) is not None and p != key]
        if len(parents) == 1:
            return [key, *(above for above in self._lineage(parents[0]) if above != key)]
        return [key, *(above for above in _merged([*map(self._lineage, parents), parents]) if above != key)]

    def _defines(self, path: Path, name: str) -> bool:
        facts = self.facts(path)
        return facts is not None and any(c.name == name for c in facts.classes)

    # -- what is converted together ------------------------------------------------------------------------------------

    def conversion_groups(self) -> list[ConversionGroup]:
        """Return groups of PyTorchTrials with every project file that must be converted along with them."""
        groups: list[ConversionGroup] = []
        for trial in self.trials.values():
            if trial.kind != "pytorch":
                continue
            files = {trial.path, *(path for path, _ in trial.bases)} - {LIBRARY_PATH}
            imported, reached = self._determined_files_imported_by(files)
            files |= imported | self._scripts_running(trial)
            merged = ConversionGroup([trial], files, reached | self.importers(trial))
            for other in [group for group in groups if group.files & files]:
                groups.remove(other)
                trials, files = [*other.trials, *merged.trials], other.files | merged.files
                merged = ConversionGroup(trials, files, other.beside | merged.beside)
            groups.append(merged)
        for group in groups:
            group.beside -= group.files
            group.trials.sort(key=lambda t: (t.path, t.facts.line))
        return groups

    @property
    def skips(self) -> set[tuple[Path, int]]:
        """Path and line of the comments that skip a trial."""
        return {(t.path, t.facts.skip) for t in self.trials.values() if t.kind == "skipped"}

    def scripts(self) -> dict[Path, list[tuple[Path, str]]]:
        """Return the scripts and the trials that they run: their own, and those they import."""
        found: dict[Path, list[tuple[Path, str]]] = {}
        for trial in self.trials.values():
            if trial.kind in ("pytorch", "deepspeed"):
                for script in (trial.path, *self.importers(trial)):
                    found.setdefault(script, []).append(trial.key)
        return found

    def staying_in(self, files: Set[Path]) -> list[TrialClass]:
        """Return the trials in the files that cannot be converted and need their files unchanged."""
        return [trial for trial in self.trials.values() if trial.kind in _STAYING and trial.path in files]

    def _determined_files_imported_by(self, files: set[Path]) -> tuple[set[Path], set[Path]]:
        """Return the files that use Determined, of those that these import, directly or through others; and all."""
        found: set[Path] = set()
        seen: set[Path] = set(files)
        queue = list(files)
        while queue:
            path = queue.pop()
            facts = self.facts(path)
            if facts is None:
                if len(self._read(path) or b"") > LARGEST_READ:
                    found.add(path)  # it may use Determined
                continue
            library = facts.imports_from("model_hub") and self.resolve(path, "model_hub") is None
            if any(map(facts.imports_from, LIBRARY)) or library or self._uses_context(path):
                found.add(path)
            reached = [self.imported_file(path, imported) for imported in facts.imports]
            for target in (*reached, *self._packages_of(path)):
                if target is not None and target not in seen:
                    seen.add(target)
                    queue.append(target)
        return found, seen

    def names_used_beside(self, group: ConversionGroup) -> frozenset[str]:
        """Return the classes and functions of the group's files that files beside them name: all of them where such a
        file looks names up that are made when the code runs."""
        defined = {name for path in group.files for name in _DEFINED.findall(self._read(path) or b"")}
        texts = [self._read(path) or b"" for path in group.beside]
        if not any(map(_LOOKS_UP.search, texts)):
            defined &= {word for text in texts for word in _WORD.findall(text)}
        return frozenset(name.decode("utf-8", "replace") for name in defined)

    def _packages_of(self, path: Path) -> Iterator[Path]:
        """Yield the ``__init__.py`` of each package that holds the file: an import of the file runs them all."""
        for folder in path.parents:
            init = folder / "__init__.py"
            if str(init) not in self._files:
                return
            yield init

    def _uses_context(self, path: Path) -> bool:
        """Return whether a helper calls a context that it is given, without importing Determined."""
        return _CONTEXT_CALLS.search(self._read(path) or b"") is not None

    def _scripts_running(self, trial: TrialClass) -> set[Path]:
        """Return the files that import the trial and run it, with Determined's trainer or without it. One that only
        uses the module, for inference or in a Core API program, stays as it is: ds-train serves what it imports."""
        return {
            p
            for p in self.importers(trial)
            if (f := self.facts(p)) is not None
            and not self.is_cluster_client(p)
            and (self._uses_trainer(p, f) or _HAND_RUN.search(self._read(p) or b""))
        }

    def _uses_trainer(self, path: Path, facts: ModuleFacts) -> bool:
        """Return whether a file has a name of the trial API that the conversion changes."""
        if any(meaning in MOVED for meaning in facts.aliases.values()):
            return True
        packages = [(bound, name) for bound, name in facts.aliases.items() if name in ("determined", _PYTORCH)]
        names = [bound + new.removeprefix(name) for bound, name in packages for new in MOVED]
        data = self._read(path) or b""
        return any(re.search(rb"\b%b\b" % re.escape(name.encode()), data) for name in names)

    def is_cluster_client(self, path: Path) -> bool:
        """Return whether a file has nothing of Determined but its client: it submits to a cluster."""
        facts = self.facts(path)
        names = [f"{i.module}.{i.name}" for i in facts.imports if i.level == 0] if facts is not None else []
        used = [name for name in names if name.split(".")[0] == "determined"]
        return bool(used) and all(name.startswith(_CLIENTS) for name in used)

    def importers(self, trial: TrialClass) -> set[Path]:
        """Return the concerned files that import the trial's module, or the trial from a package that passes it on."""
        if self._importers is None:
            self._importers = {}
            paths = {t.path for t in self.trials.values()}
            words = {os.fsencode(p.parent.name if p.name == "__init__.py" else p.stem) for p in paths}
            words |= {t.facts.name.encode() for t in self.trials.values()}
            for path in self._mentioning(words, self._concerned):
                facts = self.facts(path)
                for imported in facts.imports if facts is not None else []:
                    target = self.imported_file(path, imported)
                    if target not in paths and imported.name:
                        passed_on = self.parent_class(path, imported.qualified)
                        target = passed_on[0] if passed_on in self.trials else None
                    if target in paths and target != path and target is not None:
                        self._importers.setdefault(target, set()).add(path)
        return self._importers.get(trial.path, set())
