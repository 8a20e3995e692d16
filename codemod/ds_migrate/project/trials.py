"""The project around the named files: its modules, and which of their classes are trials, across files."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import replace
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
from ds_migrate.project.trial_class import TrialClass

_SOURCES = ("determined", "pedl")  # packages that a project may hold a copy of
_NO_TRIALS = ("torch", "lightning", "pytorch_lightning", "transformers", "determined", "trial_runtime", "abc", "typing")


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
        self.read = read
        self._comments = comments
        self._facts = dict(facts or {})
        self._imports = ImportResolver(str(root), files.__contains__)
        self._lineages: dict[tuple[Path, str], list[tuple[Path, str]]] = {}
        self._depth = 0
        self.trials: dict[tuple[Path, str], TrialClass] = {}
        sys.setrecursionlimit(max(sys.getrecursionlimit(), 20 * DEEPEST_CLASS))  # a class takes a few frames
        self._find_trials()

    def facts(self, path: Path) -> ModuleFacts | None:
        """Return the module's facts; None when it does not parse."""
        if path == LIBRARY_PATH:
            return library_facts()
        if path not in self._facts:
            data = self.read(path)
            try:
                is_readable = data is not None and len(data) <= LARGEST_READ
                self._facts[path] = module_facts(data, self._comments(path).skips) if data and is_readable else None
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                self._facts[path] = None
        return self._facts[path]

    def has_file(self, path: Path) -> bool:
        """Return whether the project has a Python file of that name."""
        return str(path) in self._files

    def read_anew(self, changed: Collection[Path]) -> Project:
        """Return the project with other contents of some files."""
        known = {path: facts for path, facts in self._facts.items() if path not in changed}
        return Project(self.root, self._files, self._concerned, self.read, self._comments, known)

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
        queue = self.mentioning(TRIAL_SIGNS)
        asked: set[bytes] = set()
        while queue:
            grown = {name.encode() for path in queue for name in self._classify(path)} - asked
            asked |= grown
            # A name like MyTrial stands in concerned files only; for any other one every file is searched.
            anywhere = {name for name in grown if not may_hold_trial(name)}
            files = map(Path, sorted(self._files, key=by_parts)) if anywhere else ()
            queue = sorted({*self.mentioning(grown), *self.mentioning(anywhere, files)})
        for key, trial in self.trials.items():
            facts = self.facts(trial.path)
            same = [c.line for c in facts.classes if c.name == trial.facts.name] if facts is not None else []
            again = next((line for line in same if line != trial.facts.line), 0)
            self.trials[key] = replace(trial, bases=tuple(self._lineage(key)[1:]), again=again)

    def mentioning(self, words: Collection[bytes], paths: Iterable[Path] | None = None) -> list[Path]:
        """Return the files that hold one of the words, of the concerned ones if none are given; nothing of the others
        is kept."""
        found = []
        for path in self._concerned if paths is None else paths:
            data = self.read(path)
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

    @property
    def skips(self) -> set[tuple[Path, int]]:
        """Path and line of the comments that skip a trial."""
        return {(t.path, t.facts.skip) for t in self.trials.values() if t.kind == "skipped"}
