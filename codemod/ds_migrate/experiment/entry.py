"""The ``entrypoint`` of a config, and the trials that it runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ds_migrate.experiment.entrypoint import OPERATORS, Command, commands, is_trial, new_lines, words
from ds_migrate.experiment.model import TrialFacts
from ds_migrate.experiment.trial_lookup import Missing, Named, Resolver, Unfollowed
from ds_migrate.experiment.yaml_nodes import Node


@dataclass(frozen=True)
class Entry:
    """An ``entrypoint`` that runs known trials. ``commands`` is empty for ``module:Class``."""

    key: Node
    node: Node
    trials: tuple[TrialFacts, ...]
    context: Path
    directory: Path
    commands: tuple[Command, ...] = ()
    shell: bool = False  # more than one simple command
    scripts: tuple[Path, ...] = ()

    @property
    def platform_starts_trial(self) -> bool:
        """Return whether Determined built the context itself, from the experiment config, and no script did."""
        return all(command.trial is not None for command in self.commands)

    @property
    def launchers(self) -> frozenset[str]:
        return frozenset(command.launcher for command in self.commands) or frozenset({""})


def find_entry(root: Node, config: Path, resolver: Resolver) -> Entry | Missing | Unfollowed | None:
    """Return the trials that a config runs; None when it runs none of this project's."""
    if root.kind != "mapping":
        return None
    i = root.index("entrypoint")
    if i is None:
        return None
    key, value = root.pairs[i]
    node = value.real
    if node.kind == "scalar" and is_trial(node.value):
        found = resolver.trial(node.value, config)
        if isinstance(found, Named):
            return Entry(key, value, found.trials, found.context, found.directory)
        return found
    shell = False
    if node.kind == "scalar":
        line = words(node.value)
        lines = new_lines(node.value, line)
        parsed = commands([word.value for word in line], shell=True, lines=lines)
        shell = bool(lines) or any(word.value in OPERATORS or word.value.endswith(";") for word in line)
    elif node.kind == "sequence" and all(item.real.kind == "scalar" for item in node.items):
        parsed = commands([item.real.value for item in node.items], shell=False)
    else:
        return None
    named: list[tuple[Command, Named]] = []
    missing: Missing | None = None
    for command in parsed:
        result = resolver.command(command, config)
        if isinstance(result, Named):
            named.append((command, result))
        elif result is not None:
            missing = missing or result
    if not named:
        items = [node] if node.kind == "scalar" else [item.real for item in node.items]
        return missing or resolver.argument(" ".join(item.value for item in items), config)
    trials = {(t.path, t.name): t for _, result in named for t in result.trials}
    first = named[0][1]
    scripts = tuple(result.script for _, result in named if result.script is not None)
    ran = tuple(command for command, _ in named)
    return Entry(key, value, tuple(trials.values()), first.context, first.directory, ran, shell, scripts)
