"""The trial that an entrypoint names, and the folder (the context directory) from which it runs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ds_migrate.experiment.entrypoint import Command, is_trial
from ds_migrate.experiment.model import ScriptRun, TrialFacts


@dataclass(frozen=True)
class Named:
    """``trials`` run with the context directory ``context``; their process starts in ``directory``, with the file
    ``script`` (None for ``module:Class``)."""

    trials: tuple[TrialFacts, ...]
    context: Path
    directory: Path
    script: Path | None = None


@dataclass(frozen=True)
class Missing:
    """The entrypoint names a class that is not where it points: ``message`` states what was found instead.

    ``trials`` are those of that name elsewhere, if there are any.
    """

    message: str
    trials: tuple[TrialFacts, ...] = ()


@dataclass(frozen=True)
class Unfollowed:
    """The entrypoint gives ``word``, which names ``trials``, to a command of another kind."""

    word: str
    trials: tuple[TrialFacts, ...]


class Resolver:
    """Finds trials and scripts of one project. ``root`` bounds the search upwards from a config."""

    def __init__(
        self, trials: Sequence[TrialFacts], scripts: Mapping[Path, Sequence[ScriptRun]], root: Path | None = None
    ) -> None:
        self._trials = tuple(trials)
        self._by_key = {(trial.path, trial.name): trial for trial in trials}
        self._sources = frozenset(trial.path for trial in trials)
        self._scripts = {Path(os.path.normpath(path)): tuple(names) for path, names in scripts.items()}
        self._root = root

    def trial(self, entrypoint: str, config: Path) -> Named | Missing | None:
        """Return the trial of ``module:Class``; None when it is none of this project.

        In ``module:holder.Class`` the holder may be a class of the module, or another module that it imports.
        """
        module, _, path = entrypoint.rpartition(":")
        holder, _, name = path.rpartition(".")
        inside = Path(*module.split(".")) if module.strip(".") else Path(module or ".")
        files = (inside.with_name(inside.name + ".py"), inside / "__init__.py")
        for folder in self._folders(config):
            for file in files:
                source = folder / file
                trial = self._by_key.get((source, name)) or self._imported(source, name, holder.partition(".")[0])
                if trial is not None:
                    return Named((trial,), folder, folder)
                if source in self._sources and not _mentions(source, rb"\b%s\b", name):
                    return Missing(f"{source.name} has no trial class {path!r}")
                if source in self._sources or source.is_file():
                    return None  # a class of another kind, or another module of that name
        # `det experiment create configs/x.yaml src/`: the context directory need not hold the config
        inner = [t for t in self._trials if t.name == name and any(_ends_with(t.path, file) for file in files)]
        if inner:
            trial = _nearest(inner, config)
            depth = next(len(file.parts) for file in files if _ends_with(trial.path, file))
            context = trial.path.parents[depth - 1]
            return Named((trial,), context, context)
        elsewhere = tuple(trial for trial in self._trials if trial.name == name)
        if elsewhere:
            return Missing(f"no module {module!r} is found from the folder of this config upwards", elsewhere)
        return None

    def command(self, command: Command, config: Path) -> Named | Missing | None:
        """The trials that a command runs."""
        if command.trial is not None:
            named = self.trial(command.trial, config)
            if isinstance(named, Named):
                return Named(named.trials, named.context, _join(named.context, command.directory))
            return named
        if command.script is not None:
            files: tuple[Path, ...] = (Path(command.script),)
        elif command.module is not None:
            inside = Path(*command.module.split("."))
            files = (inside.with_name(inside.name + ".py"), inside / "__main__.py")
        else:
            return None
        for folder in self._folders(config):
            directory = _join(folder, command.directory)
            for file in files:
                script = _join(directory, file)
                if script in self._scripts:
                    return self._runs(script, folder, directory)
                if script.is_file():
                    return None
        return self._script_elsewhere(files, command, config)

    def argument(self, text: str, config: Path) -> Unfollowed | None:
        """The first word of a text that names a trial, or a script that runs one."""
        for word in re.findall(r"[^\s'\"=;]+", text):
            found: Named | Missing | None = None
            if is_trial(word):
                found = self.trial(word, config)
            elif word.endswith(".py"):
                found = self.command(Command(0, 1, script=word), config)
            if isinstance(found, Named):
                return Unfollowed(word, found.trials)
        return None

    def _script_elsewhere(self, files: Sequence[Path], command: Command, config: Path) -> Named | None:
        relative = [Path(os.path.normpath(Path(command.directory) / file)) for file in files]
        for file in relative:
            inner = [script for script in self._scripts if _ends_with(script, file)]
            if inner and not file.is_absolute():
                script = min(inner, key=lambda path: (_distance(path, config), path))
                context = script.parents[len(file.parts) - 1]
                return self._runs(script, context, _join(context, command.directory))
        return None

    def _runs(self, script: Path, context: Path, directory: Path) -> Named | None:
        found: dict[tuple[Path, str], TrialFacts] = {}
        for run in self._scripts[script]:
            trial = self._by_name(script, run) if isinstance(run, str) else self._by_key.get(run)
            if trial is not None:
                found[trial.path, trial.name] = trial
        return Named(tuple(found.values()), context, directory, script) if found else None

    def _by_name(self, script: Path, name: str) -> TrialFacts | None:
        same = [trial for trial in self._trials if trial.name == name]
        own = self._by_key.get((script, name))
        if own is not None or not same or _mentions(script, rb"\bclass\s+%s\b", name):
            return own  # a class that the script defines is no other one of that name
        return _nearest(same, script)

    def _imported(self, source: Path, name: str, holder: str) -> TrialFacts | None:
        """Return a trial that ``source`` only imports (``from .model import MyTrial``), or imports the holder of."""
        same = [trial for trial in self._trials if trial.name == name and trial.path != source]
        if not same:
            return None
        imports = _mentions(source, rb"\bimport\b[^#\n(]*(?:\([^)]*)?\b%s\b", holder or name)
        return _nearest(same, source) if imports else None

    def _folders(self, config: Path) -> Iterator[Path]:
        """The config's folder, then its ancestors up to the project root."""
        for folder in config.parents:
            yield folder
            if folder == self._root:
                return


def _mentions(source: Path, pattern: bytes, name: str) -> bool:
    try:
        return re.search(pattern % re.escape(os.fsencode(name)), source.read_bytes()) is not None
    except OSError:
        return False


def _join(folder: Path, inner: str | Path) -> Path:
    return Path(os.path.normpath(folder / inner))


def _ends_with(path: Path, end: Path) -> bool:
    count = len(end.parts)
    return count < len(path.parts) and path.parts[-count:] == end.parts


def _distance(path: Path, other: Path) -> int:
    common = len(Path(os.path.commonpath([path, other])).parts)
    return len(path.parts) + len(other.parts) - 2 * common


def _nearest(trials: Sequence[TrialFacts], path: Path) -> TrialFacts:
    """Return the trial whose source is nearest in the tree: several folders may have a class of the name."""
    return min(trials, key=lambda trial: (_distance(trial.path, path), trial.path))
